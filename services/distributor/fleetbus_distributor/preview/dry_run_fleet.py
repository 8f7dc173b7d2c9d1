"""The fleet with clients that send dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleetbus.clusters.info import ClusterInfo
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.preview.plan_client import PlanClient

_USER_AGENT: Final = "fleetbus-plan"


class _Planned:
    """One cluster of it."""

    def __init__(self, client: PlanClient) -> None:
        self.live = client


class DryRunFleet:
    """The clusters of a fleet, as they are and with the writes of one plan.

    Args:
        fleet: the clusters; its clients are used to check which cluster answers.
    """

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self.clients: dict[str, PlanClient] = {}

    @property
    def hub(self) -> str:
        """The hub's name."""
        return self._fleet.hub

    @property
    def is_known(self) -> bool:
        """Whether every provider has listed its clusters."""
        return self._fleet.is_known

    def clusters(self) -> Sequence[ClusterInfo]:
        """Every cluster of the fleet."""
        return self._fleet.clusters()

    async def aliases(self, name: str) -> Sequence[str]:
        """Other names under which the same cluster is in the fleet."""
        return await self._fleet.aliases(name)

    def cluster(self, name: str) -> _Planned:
        """One cluster, with a client that sends dry runs."""
        return _Planned(self.client(name))

    def client(self, name: str) -> PlanClient:
        """The client of a cluster.

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: it cannot be used yet.
        """
        if name not in self.clients:
            original = self._fleet.cluster(name).live
            info = next(member for member in self._fleet.clusters() if member.name == name)
            client = PlanClient(
                info.config, user_agent=_USER_AGENT, make_transport=original.make_transport
            )
            client.cluster = name
            if original.identity_check is not None:
                client.verify_identity(original.identity_check)
            self.clients[name] = client
        return self.clients[name]

    def count_writes(self) -> int:
        """Number of writes planned so far."""
        return sum(len(client.writes) for client in self.clients.values())

    async def aclose(self) -> None:
        """Close every connection."""
        for client in self.clients.values():
            await client.aclose()
