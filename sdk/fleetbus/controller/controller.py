"""A controller: a named set of watches with one reconcile function.

copier = fleetbus.Controller("deploymentcopy")
copier.watch("apps/v1/deployments", clusters=["cluster1"], namespaces=["default"])
copier.watch_owned("apps/v1/deployments", clusters=["cluster2"])

@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None: ...
"""

from __future__ import annotations

import inspect
import os
import pathlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

from fleetbus.controller.filters import (
    ClusterChoice,
    ClusterFilter,
    Predicate,
    check_plain,
    check_takes,
    choose_clusters,
    functions_of,
    name_of,
    read_namespaces,
    read_selector,
)
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.selectors import LabelSelector
from fleetbus.reconcile import Request, Result
from fleetbus.run.in_thread import as_async
from fleetbus.run.user_code import calling_user_code
from fleetbus.workqueue.queue import Backoff, Queue
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource, parse_resource

Reconcile: TypeAlias = Callable[[Request, Fleet], Awaitable[Result | None]]
Plain: TypeAlias = Callable[[Request, Fleet], Result | None]
"""A reconcile function that is not `async`."""
Map: TypeAlias = Callable[
    [Object | None, Request, Fleet], Awaitable[Iterable[Request]] | Iterable[Request]
]
"""From a changed object (None if its body was too large) and its own request to requests.

The cluster that a request names is kept: a change in one cluster may wake an object of another.
"""

ANY_RESOURCE: Final = "*"
_SECRETS: Final = "core/secrets"
_PACKAGE: Final = str(pathlib.Path(__file__).parents[1])
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
R = TypeVar("R", bound=Reconcile | Plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One source of requests; all its filters must hold."""

    resource: Resource | None
    """None stands for every resource."""
    clusters: ClusterChoice
    namespaces: frozenset[str] | None
    selector: LabelSelector
    annotation_selector: LabelSelector
    predicate: Predicate | None
    wake_on_leave: bool
    map: Map | None
    """None for an identity watch: the request names the changed object itself."""
    owned: bool = False
    owner_kind: str = ""
    """With `owned`: only owners of this kind are woken; empty means any."""
    per_cluster: bool = False
    """With `owned`: a request names the owner in the cluster of the object, not in its own."""
    id: int = 0
    """The same for the same declaration, also in another process: what was seen through it is
    remembered under this number (rule P8)."""

    @property
    def is_identity(self) -> bool:
        """Whether a request names the changed object itself."""
        return self.map is None and not self.owned

    @property
    def is_filtered(self) -> bool:
        """Whether some object of the resource may not match."""
        return bool(
            self.clusters.text != "*"
            or self.namespaces is not None
            or self.selector
            or self.annotation_selector
            or self.predicate
        )

    def concerns(self, group: str, plural: str) -> bool:
        """Whether this is a watch of the resource."""
        resource = self.resource
        return resource is None or (resource.plural == plural and resource.group == group)

    def passes(self, old: Object | None, new: Object | None) -> bool:
        """Whether the predicate lets a change pass; without one each does."""
        if self.predicate is None:
            return True
        with calling_user_code():
            return bool(self.predicate(old, new))

    @property
    def declaration(self) -> str:
        """What was declared, as text."""
        parts = (
            self.resource.key if self.resource else ANY_RESOURCE,
            self.clusters.text,
            "*" if self.namespaces is None else ",".join(sorted(self.namespaces)),
            str(self.selector),
            str(self.annotation_selector),
            name_of(self.predicate) if self.predicate else "",
            name_of(self.map) if self.map else "",
            f"{self.owned}{self.owner_kind}{'/cluster' if self.per_cluster else ''}",
        )
        return "|".join(parts)


class Controller:
    """A named set of watches with one reconcile function.

    Args:
        name: a DNS-1123 label; all processes with this name share one queue.
        concurrency: how many requests one process works on at a time.
        timeout: how long one reconcile may take before it is cancelled and retried (rule R7).
        max_per_cluster: how many requests of one cluster one process works on at a time (rule Q9);
            None: half of them, at least one; all while no other cluster wants any.
        follow_fleet: whether everything is reconciled again when a cluster joins, leaves or is
            relabelled; for controllers whose writes depend on which clusters there are.
        backoff: the delays before a failed request is tried again; None: from 5 ms, doubled with
            each failure in a row, up to 1,000 s (rule Q7). All processes with this name need the
            same.

    Raises:
        ConfigError: the name or an option cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = 8,
        timeout: timedelta = timedelta(seconds=60),
        follow_fleet: bool = False,
        max_per_cluster: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"controller name {name!r} is not a DNS-1123 label: lower-case letters, digits and"
                " dashes, at most 63 characters"
            )
        _check_count(name, "concurrency", concurrency)
        if max_per_cluster is not None:
            _check_count(name, "max_per_cluster", max_per_cluster)
        _check_timeout(name, timeout)
        _check_backoff(name, backoff)
        self.name = name
        self.place = _caller()
        """Where it was made, as `<file>:<line>`, for messages."""
        self.concurrency = concurrency
        self.timeout = timeout
        self.max_per_cluster = max_per_cluster
        self.follow_fleet = follow_fleet
        self.backoff = backoff
        self._watches: list[Watch] = []
        self._reconcile: Reconcile | None = None
        self._functions: list[Callable[..., object]] = []

    def __repr__(self) -> str:
        return f"Controller({self.name!r})"

    def watch(
        self,
        resource: str,
        *,
        clusters: ClusterFilter = None,
        namespaces: Sequence[str] | None = None,
        selector: str = "",
        annotation_selector: str = "",
        predicate: Predicate | None = None,
        wake_on_leave: bool = True,
        map: Map | None = None,  # noqa: A002 -- the field's word
    ) -> None:
        """Wake for each change of a resource; all filters must hold.

        Once an object that woke this controller matches no longer, it wakes it once more, with
        `request.left` (with a map: the requests that it named last). An object whose body is too
        large for the bus passes selectors and predicate.

        Args:
            resource: like `apps/v1/deployments`.
            clusters: which clusters: names or patterns like `["prod-*"]`, a label selector like
                `"region=eu"`, or a function of a `ClusterInfo`; the hub is one of the names.
            namespaces: which namespaces; None for all.
            selector: a label selector, in the syntax of `kubectl -l`.
            annotation_selector: the same for annotations.
            predicate: which changes matter, from the object as this controller saw it last (None:
                never) and as it is now (None: deleted). It is also asked with `old=None` whether
                the object as it is now matches at all: what did and does not any more has left.
            wake_on_leave: whether leaving wakes.
            map: names the requests that a change wakes, in any cluster; without it the changed
                object itself.

        Raises:
            ConfigError: the resource or a filter cannot be read.
        """
        self._add(
            resource=self._resource(resource),
            clusters=clusters,
            namespaces=namespaces,
            selector=selector,
            annotation_selector=annotation_selector,
            predicate=predicate,
            wake_on_leave=wake_on_leave,
            map=map,
        )

    def watch_owned(
        self,
        resource: str,
        *,
        clusters: ClusterFilter = None,
        namespaces: Sequence[str] | None = None,
        selector: str = "",
        annotation_selector: str = "",
        predicate: Predicate | None = None,
        wake_on_leave: bool = True,
        owner_kind: str = "",
        per_cluster: bool = False,
    ) -> None:
        """Wake the owner when an object that carries its owner mark changes, in any cluster.

        Args:
            resource: like `apps/v1/deployments`, or `*` for every watched resource.
            clusters: as for `watch`, of the owned objects; so are the next five.
            namespaces: which namespaces; None for all.
            selector: a label selector.
            annotation_selector: the same for annotations.
            predicate: which changes matter.
            wake_on_leave: whether an owned object that matches no longer wakes its last owner.
            owner_kind: wake owners of this kind only, like `Deployment`.
            per_cluster: whether requests name the cluster of the changed object instead of the
                owner's: one request for each cluster that has objects of an owner.

        Raises:
            ConfigError: the resource or a filter cannot be read.
        """
        self._add(
            resource=None if resource == ANY_RESOURCE else self._resource(resource),
            clusters=clusters,
            namespaces=namespaces,
            selector=selector,
            annotation_selector=annotation_selector,
            predicate=predicate,
            wake_on_leave=wake_on_leave,
            owned=True,
            owner_kind=owner_kind,
            per_cluster=per_cluster,
        )

    def reconcile(self, function: R) -> R:
        """Register the reconcile function; a decorator.

        A plain `def` runs in a thread, and reaches the clusters through `Fleet.wait` (rule R7).

        Raises:
            ConfigError: there is one already, or it cannot be called.
        """
        if not callable(function):
            raise ConfigError(f"controller {self.name!r}: {function!r} is not a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"controller {self.name!r}: the function has a `yield`, so calling it runs nothing"
            )
        if self._reconcile is not None:
            raise ConfigError(f"controller {self.name!r} has two reconcile functions")
        self._check_takes("@reconcile", function, "request", "fleet")
        self._reconcile = as_async(function, threads=self.concurrency, name=self.name)
        self._add_function(function)
        return function

    @property
    def watches(self) -> tuple[Watch, ...]:
        """All watches, in the order of their declaration."""
        return tuple(self._watches)

    @property
    def own_resource(self) -> str:
        """The key of the resource that requests name objects of; empty if watches name several."""
        watched = {w.resource.key for w in self._watches if w.is_identity and w.resource}
        return watched.pop() if len(watched) == 1 else ""

    @property
    def handles_secrets(self) -> bool:
        """Whether it watches Secrets: what it raises may quote one, so its texts are not told."""
        watched = {watch.resource.key if watch.resource else _SECRETS for watch in self._watches}
        return _SECRETS in watched

    def request(self, cluster: str, namespace: str, name: str) -> Request:
        """A request of this controller, for mapping functions."""
        return Request(self.name, cluster, namespace, name)

    def function(self) -> Reconcile:
        """The reconcile function, once the controller is whole.

        Raises:
            ConfigError: it has no reconcile function or no watch.
        """
        if self._reconcile is None:
            raise ConfigError(f"controller {self.name!r} has no @reconcile function")
        if not self._watches:
            raise ConfigError(f"controller {self.name!r} watches nothing")
        return self._reconcile

    def background_loops(self, queue: Queue, fleet: Fleet) -> Sequence[Coroutine[Any, Any, None]]:  # noqa: ARG002 -- for subclasses
        """The loops of this kind of controller beside the workers of each process.

        They run until they are cancelled.
        """
        return ()

    def functions(self) -> tuple[Callable[..., object], ...]:
        """The author's functions: when the file of one changes, all is reconciled once more."""
        found = [*self._functions]
        for watch in self._watches:
            for function in (watch.predicate, watch.map, watch.clusters.function):
                found += functions_of(function)
        return tuple(found)

    def _add_function(self, function: Callable[..., object]) -> None:
        """What a run does depends on this function of the author."""
        self._functions.append(function)

    def _check_takes(self, what: str, function: Callable[..., object], *arguments: str) -> None:
        """Refuse a function of the author that cannot be called with these.

        Raises:
            ConfigError: it takes more or less.
        """
        try:
            check_takes(what, function, *arguments)
        except ConfigError as e:
            raise ConfigError(f"controller {self.name!r}: {e}") from e

    def _resource(self, text: str) -> Resource:
        try:
            return parse_resource(text)
        except InvalidName as e:
            raise ConfigError(f"controller {self.name!r}: {e}") from e

    def _add(
        self,
        *,
        resource: Resource | None,
        clusters: ClusterFilter,
        namespaces: Sequence[str] | None,
        selector: str,
        annotation_selector: str,
        predicate: Predicate | None,
        wake_on_leave: bool,
        map: Map | None = None,  # noqa: A002 -- the field's word
        owned: bool = False,
        owner_kind: str = "",
        per_cluster: bool = False,
    ) -> None:
        try:
            if predicate is not None:
                check_plain("predicate", predicate)
                check_takes("predicate", predicate, "old", "new")
            if map is not None and not callable(map):
                raise ConfigError(f"map must be a function, not {map!r}")  # noqa: TRY301 -- named below
            if map is not None:
                check_takes("map", map, "object", "request", "fleet")
            watch = Watch(
                resource=resource,
                clusters=choose_clusters(clusters),
                namespaces=read_namespaces(namespaces),
                selector=read_selector("selector", selector),
                annotation_selector=read_selector("annotation_selector", annotation_selector),
                predicate=predicate,
                wake_on_leave=wake_on_leave,
                map=map,
                owned=owned,
                owner_kind=owner_kind,
                per_cluster=per_cluster,
            )
        except ConfigError as e:
            raise ConfigError(f"controller {self.name!r}: {e}") from e
        # Two equal declarations are told apart by their place.
        same = sum(each.declaration == watch.declaration for each in self._watches)
        number = crc32(f"{watch.declaration}#{same}".encode())
        self._watches.append(replace(watch, id=number))


def _caller() -> str:
    """Where the code stands that is not ours: `<file>:<line>`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{os.path.normpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def _check_count(name: str, option: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"controller {name!r}: {option} must be at least 1, a whole number, not {value!r}"
        )


def _check_timeout(name: str, timeout: object) -> None:
    if not isinstance(timeout, timedelta):
        raise ConfigError(f"controller {name!r}: timeout must be a timedelta, not {timeout!r}")
    if timeout <= timedelta():
        raise ConfigError(f"controller {name!r}: timeout must be more than nothing")


def _check_backoff(name: str, backoff: object) -> None:
    if backoff is not None and not isinstance(backoff, Backoff):
        raise ConfigError(
            f"controller {name!r}: backoff must be a fleetbus.Backoff, like"
            f" Backoff(first=timedelta(seconds=1), limit=timedelta(minutes=5)), not {backoff!r}"
        )
