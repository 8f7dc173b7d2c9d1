"""The description of one cluster by its provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from fleetbus_proto.subjects import check_cluster

if TYPE_CHECKING:
    from fleetbus.kube.connection.config import KubeConfig


class ClusterAccess(StrEnum):
    """The way to the API server of a cluster."""

    DIRECT = "Direct"
    """With access data."""
    AGENT = "Agent"
    """Through an agent in the cluster, which also watches it from inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A cluster that a provider wants in the fleet; equal values mean no change."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    hub: bool = False
    provider: str
    config: KubeConfig | None
    """Access data; None while `problem` says why there is none, and for one with an agent."""
    access: ClusterAccess = ClusterAccess.DIRECT
    problem: str = ""
    resources: tuple[Any, ...] = ()
    """Resources to watch, unchecked: names, or maps {resource, namespaces, labelSelector,
    fieldSelector}; the watcher checks them. Empty means the watcher's own setting."""
    deny: tuple[str, ...] | None = None
    """Resources that `*` excludes, as group/plural; None means the watcher's own setting."""
    suspended: bool = False
    """Nothing is watched or written there; what is known is kept."""
    uid: str = field(default="", compare=False)
    """The recorded UID of the namespace kube-system; empty if the provider has none. It identifies
    the cluster and is not a setting, so recording it is no change (rule W13)."""

    def __post_init__(self) -> None:
        check_cluster(self.name)


class Provider(Protocol):
    """A source of clusters."""

    @property
    def name(self) -> str:
        """The name in messages and in `ClusterInfo.provider`."""
        ...

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the whole desired set, at the start and after each change.

        It never raises for what a user can repair: an unreadable source yields nothing and is
        logged, an unusable entry is yielded with its `problem`, or skipped and logged.
        """
        ...
