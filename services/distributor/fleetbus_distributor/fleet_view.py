"""The part of a fleet that the distributor needs; `fleetbus.Fleet` has it, and so do tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube.client import KubeClient


class LiveCluster(Protocol):
    """A cluster with a client of its own API server."""

    @property
    def live(self) -> KubeClient:
        """Reads and writes go straight to the API server (rule D1)."""
        ...


class FleetView(Protocol):
    """All clusters, and a client for each."""

    @property
    def hub(self) -> str:
        """The hub's name; "" when there is none."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether every provider has listed its clusters; before that, absence means nothing."""
        ...

    def clusters(self) -> Sequence[ClusterInfo]:
        """Every cluster of the fleet."""
        ...

    async def aliases(self, name: str) -> Sequence[str]:
        """Other names under which the same cluster is in the fleet.

        Raises:
            NotAccepted: they cannot be looked up.
        """
        ...

    def cluster(self, name: str) -> LiveCluster:
        """One cluster.

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: it cannot be used yet.
        """
        ...


TargetClients: TypeAlias = Callable[[str], KubeClient]
"""The client of a target by the name of its cluster, with the rights that count there (rule D16).

It raises ClusterNotFound or NotEngaged, as `FleetView.cluster` does.
"""
