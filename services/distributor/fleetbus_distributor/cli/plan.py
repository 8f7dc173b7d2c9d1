"""Runs `fleetbus plan`."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError, ConfigError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process import printer
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus_cli.documents import render_json
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import UnknownName
from fleetbus_distributor.cli.manifests import read_manifests
from fleetbus_distributor.cli.plan_text import describe, print_plan
from fleetbus_distributor.preview.dry_run_fleet import DryRunFleet
from fleetbus_distributor.preview.preview import Preview, candidate_of, preview
from fleetbus_distributor.preview.stores import PlannedBudget, PlannedVotes
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.shared_settings import with_shared

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus

_CLUSTERS_TIMEOUT: Final = timedelta(seconds=15)
_NOTHING, _ERROR, _CHANGES = 0, 1, 2


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


def run_plan(
    name: str | None,
    file: pathlib.Path | None,
    namespace: str,
    *,
    output: str,
    hub: Hub,
    redis_url: str | None,
    nats_url: str | None,
) -> int:
    """Plan and print; return the exit status.

    Raises:
        ConfigError: an argument or the file is wrong, or the hub is not set.
        UnknownName: no MultiClusterResource has this name.
    """
    if (name is None) == (file is None):
        raise ConfigError("give the NAME of a MultiClusterResource, or a manifest with -f FILE")
    manifests = read_manifests(file, namespace) if file is not None else []
    set_up_logs("text", "error")
    config = resolve_hub(hub)

    async def main() -> int:
        async with _connect(config, redis_url) as (clusters, redis), _bus(nats_url) as bus:
            planner = await _planner(LiveFleet(registry=clusters), redis, bus)
            if name is not None:
                plans = [await planner.plan(await _read(planner.fleet, namespace, name))]
            else:
                plans = [await planner.plan_manifest(one) for one in manifests]
        return _print(plans, planner.unknown(), output)

    try:
        return run_on_hub(main())
    except BusError as e:
        printer.note(f"fleetbus: the votes on gates cannot be read: {e}")
        return _ERROR


def _print(plans: Sequence[Preview], notes: Sequence[str], output: str) -> int:
    if output == "json":
        printer.json_text(render_json({"plans": [describe(one) for one in plans]}))
    else:
        for number, plan in enumerate(plans):
            if number:
                printer.line()
            print_plan(plan)
    for note in notes:
        printer.note(f"note: {note}")
    if any(one.has_errors for one in plans):
        return _ERROR
    return _CHANGES if any(one.has_changes for one in plans) else _NOTHING


@asynccontextmanager
async def _bus(nats_url: str | None) -> AsyncGenerator[Bus | None]:
    """The bus, if one is set: it has the votes."""
    target = resolve_target(nats_url=nats_url)
    if not target.nats_url:
        yield None
        return
    async with connect_nats(target.require_nats(), name="fleetbus-plan") as bus:
        yield bus


@asynccontextmanager
async def _connect(
    hub: KubeConfig, redis_url: str | None
) -> AsyncGenerator[tuple[Clusters, Redis | None]]:
    """The fleet, and the store if one is set; without it any cluster that answers is accepted."""
    target = resolve_target(redis_url=redis_url)
    redis = await connect_store(target.require_store()) if target.redis_url else None
    clusters = _clusters(hub)
    if redis is not None:
        clusters.verify_identities(
            AcceptedClusters(SnapshotReader(redis, await find_shards(redis)))
        )
    following = asyncio.create_task(clusters.run(), name="clusters")
    try:
        try:
            async with asyncio.timeout(_CLUSTERS_TIMEOUT.total_seconds()):
                await clusters.known()
        except TimeoutError as e:
            raise ConfigError("the clusters of the fleet cannot be read: the hub is away") from e
        yield clusters, redis
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await clusters.aclose()
        if redis is not None:
            await redis.aclose()


def _clusters(hub: KubeConfig) -> Clusters:
    """Build the registry from FLEETBUS_PROVIDERS; by default from the Clusters of the hub."""
    if not os.environ.get("FLEETBUS_PROVIDERS"):
        return Clusters([ClusterProvider(hub)])
    settings = load_settings(SharedSettings)
    name = settings.hub_cluster
    info = ClusterInfo(name=name, hub=True, provider="hub", config=hub) if name else None
    return Clusters([build_provider(one, hub) for one in settings.providers], hub=info)


async def _read(fleet: LiveFleet, namespace: str, name: str) -> Object:
    found = await fleet.cluster(_hub_of(fleet)).live.get(MULTI_CLUSTER_RESOURCES, namespace, name)
    if found is None:
        raise UnknownName(f"there is no MultiClusterResource {namespace}/{name} on the hub")
    return found


def _hub_of(fleet: LiveFleet) -> str:
    if not fleet.hub:
        raise ConfigError(
            "the fleet has no hub: no Cluster has spec.hub, and no provider names one"
        )
    return fleet.hub


@dataclass(slots=True, kw_only=True)
class _Planner:
    """Plans MultiClusterResources of one fleet."""

    fleet: LiveFleet
    budget: PlannedBudget
    votes: PlannedVotes
    settings: DistributorSettings

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


async def _planner(fleet: LiveFleet, redis: Redis | None, bus: Bus | None) -> _Planner:
    settings = load_settings(DistributorSettings)
    return _Planner(
        fleet=fleet,
        budget=PlannedBudget(redis),
        votes=PlannedVotes(bus),
        settings=settings if redis is None else await with_shared(redis, settings),
    )
