"""Runs `fleetbus plan`."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.cli.documents import render_json
from fleetbus.cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus.cli.store import connect_store
from fleetbus.cli.target import resolve_target
from fleetbus.cli.unknown import UnknownName
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus_distributor.cli.manifests import read_manifests
from fleetbus_distributor.cli.plan_text import describe, render
from fleetbus_distributor.preview.dry_run_fleet import DryRunFleet
from fleetbus_distributor.preview.preview import Preview, candidate_of, preview
from fleetbus_distributor.preview.stores import PlannedBudget
from fleetbus_distributor.render.spec import RESOURCE
from fleetbus_distributor.settings import DistributorSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
        async with _connect(config, redis_url) as (clusters, redis):
            fleet = LiveFleet(registry=clusters)
            if name is not None:
                plans = [await _plan(fleet, redis, await _read(fleet, namespace, name))]
            else:
                plans = [await _plan_manifest(fleet, redis, one) for one in manifests]
        return _print(plans, output)

    return run_on_hub(main())


def _print(plans: Sequence[tuple[Preview, bool]], output: str) -> int:
    if output == "json":
        print(render_json({"plans": [describe(one) for one, _ in plans]}))
    else:
        is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n\n".join(render(one, is_coloured=is_coloured) for one, _ in plans))
    if any(is_unknown for _, is_unknown in plans):
        why = "deletions also need a share of the fleet's budget, which is in a store that is not"
        print(f"note: {why} set here (--redis-url)", file=sys.stderr)
    if any(one.has_errors for one, _ in plans):
        return _ERROR
    return _CHANGES if any(one.has_changes for one, _ in plans) else _NOTHING


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
    found = await fleet.cluster(_hub_of(fleet)).live.get(RESOURCE, namespace, name)
    if found is None:
        raise UnknownName(f"there is no MultiClusterResource {namespace}/{name} on the hub")
    return found


def _hub_of(fleet: LiveFleet) -> str:
    if not fleet.hub:
        raise ConfigError(
            "the fleet has no hub: no Cluster has spec.hub, and no provider names one"
        )
    return fleet.hub


async def _plan_manifest(
    fleet: LiveFleet, redis: Redis | None, manifest: Object
) -> tuple[Preview, bool]:
    dry = DryRunFleet(fleet)
    try:
        resource = await candidate_of(dry.client(_hub_of(fleet)), manifest)
    finally:
        await dry.aclose()
    return await _plan(fleet, redis, resource)


async def _plan(fleet: LiveFleet, redis: Redis | None, resource: Object) -> tuple[Preview, bool]:
    """A plan, and whether it depends on a budget that could not be read."""
    dry, budget = DryRunFleet(fleet), PlannedBudget(redis)
    try:
        made = await preview(dry, resource, budget=budget, settings=DistributorSettings())
    finally:
        await dry.aclose()
    return made, budget.is_unknown
