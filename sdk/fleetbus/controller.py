"""A controller: a named set of watches with one reconcile function.

copier = fleetbus.Controller("deploymentcopy")
copier.watch("apps/v1/deployments", clusters=["cluster1"], namespaces=["default"])
copier.watch_owned("apps/v1/deployments", clusters=["cluster2"])

@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None: ...
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ConfigError
from fleetbus.fleet import Fleet
from fleetbus.in_thread import as_async
from fleetbus.kube import Object
from fleetbus.reconcile import Request, Result
from fleetbus.selectors import LabelSelector
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.resources import Resource, parse_resource

Reconcile: TypeAlias = Callable[[Request, Fleet], Awaitable[Result | None]]
Plain: TypeAlias = Callable[[Request, Fleet], Result | None]
"""A reconcile function that is not `async`."""
Map: TypeAlias = Callable[[Object | None, Request, Fleet], Awaitable[Iterable[Request]]]
"""From a changed object (None if its body was too large) and its own request to requests.

The cluster that a request names is kept: a change in one cluster may wake an object of another.
"""
ClusterFilter: TypeAlias = Sequence[str] | str | Callable[[ClusterInfo], bool] | None
"""Names, a label selector such as `region=eu`, a predicate, or None for every cluster."""

ANY_RESOURCE: Final = "*"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
R = TypeVar("R", bound=Reconcile | Plain)


@dataclass(frozen=True, slots=True)
class Watch:
    """One source of requests."""

    resource: Resource | None
    """None stands for every resource."""
    matches_cluster: Callable[[str, ClusterInfo | None], bool]
    namespaces: frozenset[str] | None
    map: Map | None
    """None for an identity watch: the request names the changed object itself."""
    owned: bool = False
    owner_kind: str = ""
    """With `owned`: only owners of this kind are woken; empty means any."""

    def matches(self, event: Event, cluster: ClusterInfo | None) -> bool:
        """Whether a change concerns this watch."""
        resource = self.resource
        if resource is not None and (
            event.resource != resource.plural or event.group != resource.group
        ):
            return False
        if self.namespaces is not None and event.namespace not in self.namespaces:
            return False
        return self.matches_cluster(event.cluster, cluster)


class Controller:
    """A named set of watches with one reconcile function.

    Args:
        name: a DNS-1123 label; all processes with this name share one queue.
        concurrency: how many requests one process works on at a time.
        timeout: how long one reconcile may take before it is cancelled and retried (rule R7).
        max_per_cluster: how many requests of one cluster one process works on at a time (rule Q9);
            None: half of them, at least one, or all while the fleet has one cluster.

    Raises:
        ConfigError: the name cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = 8,
        timeout: timedelta = timedelta(seconds=60),
        max_per_cluster: int | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"controller name {name!r} is not a DNS-1123 label")
        if concurrency < 1:
            raise ConfigError(f"controller {name!r}: concurrency must be at least 1")
        if max_per_cluster is not None and max_per_cluster < 1:
            raise ConfigError(f"controller {name!r}: max_per_cluster must be at least 1")
        if timeout <= timedelta():
            raise ConfigError(f"controller {name!r}: timeout must be more than nothing")
        self.name = name
        self.concurrency = concurrency
        self.timeout = timeout
        self.max_per_cluster = max_per_cluster
        self._watches: list[Watch] = []
        self._reconcile: Reconcile | None = None

    def __repr__(self) -> str:
        return f"Controller({self.name!r})"

    def watch(
        self,
        resource: str,
        *,
        clusters: ClusterFilter = None,
        namespaces: Sequence[str] | None = None,
        map: Map | None = None,  # noqa: A002 -- the field's word
    ) -> None:
        """Wake for each change of a resource.

        Args:
            resource: like `apps/v1/deployments`.
            clusters: which clusters; the hub is one of the names.
            namespaces: which namespaces; None for all.
            map: names the requests that a change wakes; without it the changed object itself.

        Raises:
            ConfigError: the resource or the selector cannot be read.
        """
        self._watches.append(
            Watch(
                resource=self._resource(resource),
                matches_cluster=self._cluster_filter(clusters),
                namespaces=self._namespaces(namespaces),
                map=map,
            )
        )

    def watch_owned(
        self,
        resource: str,
        *,
        clusters: ClusterFilter = None,
        namespaces: Sequence[str] | None = None,
        owner_kind: str = "",
    ) -> None:
        """Wake the owner when an object that carries its owner mark changes, in any cluster.

        Args:
            resource: like `apps/v1/deployments`, or `*` for every watched resource.
            clusters: which clusters.
            namespaces: which namespaces; None for all.
            owner_kind: wake owners of this kind only, like `Deployment`.

        Raises:
            ConfigError: the resource or the selector cannot be read.
        """
        self._watches.append(
            Watch(
                resource=None if resource == ANY_RESOURCE else self._resource(resource),
                matches_cluster=self._cluster_filter(clusters),
                namespaces=self._namespaces(namespaces),
                map=None,
                owned=True,
                owner_kind=owner_kind,
            )
        )

    def reconcile(self, function: R) -> R:
        """Register the reconcile function; a decorator.

        A plain `def` runs in a thread, and reaches the clusters through `Fleet.wait` (rule R7).

        Raises:
            ConfigError: there is one already, or it cannot be called.
        """
        if not callable(function):
            raise ConfigError(f"controller {self.name!r}: {function!r} is not a function")
        if self._reconcile is not None:
            raise ConfigError(f"controller {self.name!r} has two reconcile functions")
        self._reconcile = as_async(function, threads=self.concurrency, name=self.name)
        return function

    @property
    def watches(self) -> tuple[Watch, ...]:
        """All watches, in the order of their declaration."""
        return tuple(self._watches)

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

    def _resource(self, text: str) -> Resource:
        try:
            return parse_resource(text)
        except InvalidName as e:
            raise ConfigError(f"controller {self.name!r}: {e}") from e

    def _namespaces(self, namespaces: Sequence[str] | None) -> frozenset[str] | None:
        if isinstance(namespaces, str):  # its letters would be taken for namespaces
            raise ConfigError(
                f"controller {self.name!r}: namespaces={namespaces!r} must be a list of names"
            )
        return frozenset(namespaces) if namespaces is not None else None

    def _cluster_filter(self, clusters: ClusterFilter) -> Callable[[str, ClusterInfo | None], bool]:
        if clusters is None:
            return lambda _name, _info: True
        if callable(clusters):
            return lambda _name, info: info is not None and clusters(info)
        if isinstance(clusters, str):
            selector = self._selector(clusters)
            return lambda _name, info: info is not None and selector.matches(info.labels)
        names = frozenset(clusters)
        return lambda name, _info: name in names

    def _selector(self, text: str) -> LabelSelector:
        try:
            return LabelSelector.parse(text)
        except ValueError as e:
            raise ConfigError(f"controller {self.name!r}: clusters={text!r}: {e}") from e
