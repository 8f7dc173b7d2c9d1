"""Plans MultiClusterResources of a connected fleet, for `fleetbus plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetbus.errors import ConfigError
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process.settings import load_settings
from fleetbus_cli.unknown import UnknownName
from fleetbus_distributor.preview.dry_run_fleet import DryRunFleet
from fleetbus_distributor.preview.preview import Preview, candidate_of, preview
from fleetbus_distributor.preview.stores import PlannedBudget, PlannedVotes
from fleetbus_distributor.settings import DistributorSettings, with_shared

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.clusters.registry import Clusters
    from fleetbus.kube.client import KubeClient, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """One cluster of the registry."""

    live: KubeClient


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFleet:
    """The registry as the distributor needs it."""

    registry: Clusters

    @property
    def hub(self) -> str:
        """The hub's name; "" when there is none."""
        return self.registry.hub

    @property
    def is_known(self) -> bool:
        """Whether every provider has listed its clusters."""
        return self.registry.is_known

    def clusters(self) -> Sequence[ClusterInfo]:
        """Every cluster of the fleet."""
        return self.registry.all()

    async def aliases(self, name: str) -> Sequence[str]:
        """Other names under which the same cluster is in the fleet."""
        return await self.registry.aliases(name)

    def cluster(self, name: str) -> LiveCluster:
        """One cluster."""
        return LiveCluster(live=self.registry.client(name))


def _hub_of(fleet: LiveFleet) -> str:
    if not fleet.hub:
        raise ConfigError(
            "the hub is not known: no Cluster has the address of the hub's kubeconfig; set"
            " FLEETBUS_HUB_CLUSTER to its name in the fleet, which is hub.cluster of the chart"
        )
    return fleet.hub


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans MultiClusterResources of one fleet."""

    fleet: LiveFleet
    budget: PlannedBudget
    votes: PlannedVotes
    settings: DistributorSettings

    async def plan_name(self, namespace: str, name: str) -> Preview:
        """Plan a MultiClusterResource of the hub.

        Raises:
            UnknownName: the hub has none of this name.
        """
        hub = self.fleet.cluster(_hub_of(self.fleet)).live
        resource = await hub.get(MULTI_CLUSTER_RESOURCES, namespace, name)
        if resource is None:
            raise UnknownName(f"there is no MultiClusterResource {namespace}/{name} on the hub")
        return await self.plan(resource)

    async def plan_manifest(self, manifest: Object) -> Preview:
        """Plan what a manifest would change."""
        dry = DryRunFleet(self.fleet)
        try:
            resource = await candidate_of(dry.client(_hub_of(self.fleet)), manifest)
        finally:
            await dry.aclose()
        return await self.plan(resource)

    async def plan(self, resource: Object) -> Preview:
        """Plan a MultiClusterResource as it is, or would be, on the hub."""
        dry = DryRunFleet(self.fleet)
        try:
            return await preview(
                dry,
                resource,
                budget=self.budget,
                settings=self.settings,
                read_vote=self.votes,
            )
        finally:
            await dry.aclose()

    def unknown(self) -> list[str]:
        """List what the plans depend on and could not be read."""
        notes: list[str] = []
        if self.budget.is_unknown:
            why = "deletions also need a share of the fleet's budget, which is in a store"
            notes.append(f"{why} that is not set here (--redis-url)")
        if self.votes.is_unknown:
            why = "gates also wait for votes, which are on the bus, and its address"
            notes.append(f"{why} is not set here (--nats-url)")
        return notes


async def build_planner(clusters: Clusters, redis: Redis | None, bus: Bus | None) -> Planner:
    """Build it from the registry, the store and the bus; what is None is not set."""
    settings = load_settings(DistributorSettings)
    return Planner(
        fleet=LiveFleet(registry=clusters),
        budget=PlannedBudget(redis),
        votes=PlannedVotes(bus),
        settings=settings if redis is None else await with_shared(redis, settings),
    )
