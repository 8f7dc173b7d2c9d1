"""One member of the fleet, as a provider describes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleetbus.kube.connection.config import KubeConfig
from fleetbus_proto.subjects import check_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A cluster that a provider wants in the fleet; equal values mean that nothing changed."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    hub: bool = False
    provider: str
    config: KubeConfig | None
    """Access data; None while `problem` says why there is none."""
    problem: str = ""
    resources: tuple[Any, ...] = ()
    """What to watch, as written there: names, or maps {resource, namespaces, labelSelector,
    fieldSelector}; the watcher checks them. Empty means its own setting."""
    deny: tuple[str, ...] | None = None
    """What `*` leaves out, as group/plural; None means the watcher's own setting."""
    suspended: bool = False
    """Nothing is watched and nothing is written there; what is known stays known."""
    uid: str = field(default="", compare=False)
    """Of the namespace kube-system, as the provider has it on record; empty where it has none. It
    identifies the cluster and is no setting, so that it is recorded changes nothing (W13)."""

    def __post_init__(self) -> None:
        check_cluster(self.name)


class Provider(Protocol):
    """A source of clusters."""

    @property
    def name(self) -> str:
        """What messages and `ClusterInfo.provider` say."""
        ...

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the whole desired set, at the start and each time something changed.

        It never raises for what a user can repair: an unreadable source yields nothing new and
        is logged, an unusable entry is yielded with its `problem`, or skipped by name.
        """
        ...
