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
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

from fleetbus.controller.filters import ClusterFilter, Predicate, check_takes, functions_of
from fleetbus.controller.watch import Ignore, Map, Watch, make_watch, read_resource
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus.run.in_thread import as_async
from fleetbus.workqueue.queue import Backoff, Queue
from fleetbus_proto.resources import Resource

Reconcile: TypeAlias = Callable[[Request, Fleet], Awaitable[Result | None]]
Plain: TypeAlias = Callable[[Request, Fleet], Result | None]
"""A reconcile function that is not `async`."""
_SECRETS: Final = "core/secrets"
_PACKAGE: Final = str(pathlib.Path(__file__).parents[1])
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
R = TypeVar("R", bound=Reconcile | Plain)


class Controller:
    """A named set of watches with one reconcile function.

    Args:
        name: a DNS-1123 label; all processes with this name share one queue.
        concurrency: number of requests that one process handles at a time.
        timeout: time limit of one reconcile, which is then cancelled and retried (rule R7).
        max_per_cluster: number of requests of one cluster that one process handles at a time (rule
            Q9); None: half of `concurrency`, at least one; all while no other cluster wants any.
        follow_fleet: whether everything is reconciled again when a cluster joins, leaves or is
            relabelled; for controllers whose writes depend on which clusters there are.
        backoff: the delays before a failed request is retried; None: from 5 ms, doubled with each
            failure in a row, up to 1,000 s (rule Q7). Must be equal in all processes with this
            name.

    Raises:
        ConfigError: the name or an option is invalid.
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
        """Place of its declaration, as `<file>:<line>`, for messages."""
        self.concurrency = concurrency
        self.timeout = timeout
        self.max_per_cluster = max_per_cluster
        self.follow_fleet = follow_fleet
        self.backoff = backoff
        self.repaired_by = ""
        """The controller whose `watch_owned` notices changes of the objects that this one writes,
        with requests per cluster; by default this one itself."""
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
        """Enqueue a request for each change of a resource; all filters must match.

        When an object stops matching, its request is enqueued once more, with `request.left` (with
        a map: the requests that it named last). An object whose body is too large for the bus
        passes selectors and predicate.

        Args:
            resource: like `apps/v1/deployments`.
            clusters: names or patterns like `["prod-*"]`, a label selector like `"region=eu"`, or
                a function of a `ClusterInfo`; None for all. The hub is a cluster, too.
            namespaces: only these namespaces; None for all.
            selector: a label selector, in the syntax of `kubectl -l`.
            annotation_selector: the same for annotations.
            predicate: whether a change matters, given the last state that this controller saw
                (None: never) and the current one (None: deleted). It is also called with
                `old=None` to find out whether the object matches at all.
            wake_on_leave: whether to enqueue an object once more when it stops matching.
            map: returns the requests to enqueue for a change, in any cluster; without it the
                request names the changed object itself.

        Raises:
            ConfigError: the resource or a filter is invalid.
        """
        with self._named_errors():
            watch = make_watch(
                resource,
                clusters=clusters,
                namespaces=namespaces,
                selector=selector,
                annotation_selector=annotation_selector,
                predicate=predicate,
                wake_on_leave=wake_on_leave,
                map=map,
            )
        self._add(watch)

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
        ignore: Ignore | None = None,
    ) -> None:
        """Enqueue the owner when an object with its owner mark changes, in any cluster.

        Args:
            resource: like `apps/v1/deployments`, or `*` for every watched resource.
            clusters: clusters of the owned objects, as for `watch`; so are the next five.
            namespaces: only these namespaces; None for all.
            selector: a label selector.
            annotation_selector: the same for annotations.
            predicate: whether a change matters.
            wake_on_leave: whether to enqueue the last owner when an owned object stops matching.
            owner_kind: enqueue owners of this kind only, like `Deployment`.
            per_cluster: whether requests name the cluster of the changed object instead of the
                owner's: one request for each cluster that has objects of an owner.
            ignore: whether to ignore a change, because this process has made it itself. Unlike a
                predicate it may depend on the state of the process; for other processes, and after
                a gap, the same change counts.

        Raises:
            ConfigError: the resource or a filter is invalid.
        """
        with self._named_errors():
            watch = make_watch(
                resource,
                clusters=clusters,
                namespaces=namespaces,
                selector=selector,
                annotation_selector=annotation_selector,
                predicate=predicate,
                wake_on_leave=wake_on_leave,
                owned=True,
                owner_kind=owner_kind,
                per_cluster=per_cluster,
                ignore=ignore,
            )
        self._add(watch)

    def reconcile(self, function: R) -> R:
        """Register the reconcile function; use it as a decorator.

        A plain `def` runs in a thread, and accesses the clusters through `Fleet.wait` (rule R7).

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
    def has_owned_watch(self) -> bool:
        """Whether changes of its own writes trigger it, or the controller that repairs them."""
        return bool(self.repaired_by) or any(watch.owned for watch in self._watches)

    def repairing(self, request: Request, cluster: str) -> Request:
        """The request that compares the writes of a run on a cluster again."""
        if not self.repaired_by:
            return request
        return Request(self.repaired_by, cluster, request.namespace, request.name)

    @property
    def own_resource(self) -> str:
        """The key of the resource that requests name objects of; empty if watches name several."""
        watched = self.own_resources
        return watched[0] if len(watched) == 1 else ""

    @property
    def own_resources(self) -> tuple[str, ...]:
        """The keys of the resources whose changes are requests for the changed objects themselves.

        Requests of mapping functions and for owners may name any object.
        """
        return tuple(
            sorted({w.resource.key for w in self._watches if w.is_identity and w.resource})
        )

    @property
    def handles_secrets(self) -> bool:
        """Whether it watches Secrets: its errors may quote a value, so they are not shown."""
        watched = {watch.resource.key if watch.resource else _SECRETS for watch in self._watches}
        return _SECRETS in watched

    def request(self, cluster: str, namespace: str, name: str) -> Request:
        """Build a request of this controller, for mapping functions."""
        return Request(self.name, cluster, namespace, name)

    def function(self) -> Reconcile:
        """Return the reconcile function of a complete controller.

        Raises:
            ConfigError: it has no reconcile function or no watch.
        """
        if self._reconcile is None:
            raise ConfigError(f"controller {self.name!r} has no @reconcile function")
        if not self._watches:
            raise ConfigError(f"controller {self.name!r} watches nothing")
        return self._reconcile

    def background_loops(self, queue: Queue, fleet: Fleet) -> Sequence[Coroutine[Any, Any, None]]:  # noqa: ARG002 -- for subclasses
        """Loops that run beside the workers of each process, until they are cancelled."""
        return ()

    def functions(self) -> tuple[Callable[..., object], ...]:
        """All user code: when the file of one of these changes, everything is reconciled again."""
        found = [*self._functions]
        for watch in self._watches:
            for function in (watch.predicate, watch.map, watch.clusters.function):
                found += functions_of(function)
        return tuple(found)

    def _add_function(self, function: Callable[..., object]) -> None:
        """Count a function among the user code that a run depends on."""
        self._functions.append(function)

    def _check_takes(self, kind: str, function: Callable[..., object], *arguments: str) -> None:
        """Check that a function of the author can be called with these arguments.

        Raises:
            ConfigError: it takes others.
        """
        with self._named_errors():
            check_takes(kind, function, *arguments)

    def _resource(self, text: str) -> Resource:
        with self._named_errors():
            return read_resource(text)

    def _add(self, watch: Watch) -> None:
        # Equal declarations are numbered by their order.
        same = sum(each.declaration == watch.declaration for each in self._watches)
        number = crc32(f"{watch.declaration}#{same}".encode())
        self._watches.append(replace(watch, id=number))

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        """Prefix an error with the controller's name."""
        try:
            yield
        except ConfigError as e:
            raise ConfigError(f"controller {self.name!r}: {e}") from e


def _caller() -> str:
    """The line outside of the SDK that is being executed: `<file>:<line>`."""
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
        raise ConfigError(f"controller {name!r}: timeout must be positive")


def _check_backoff(name: str, backoff: object) -> None:
    if backoff is not None and not isinstance(backoff, Backoff):
        raise ConfigError(
            f"controller {name!r}: backoff must be a fleetbus.Backoff, like"
            f" Backoff(first=timedelta(seconds=1), limit=timedelta(minutes=5)), not {backoff!r}"
        )
