"""The connections of a process that hosts controllers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from fleetbus.agent_calls.calls import agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.clusters.providers.build import build_clusters, wait_for_hub
from fleetbus.clusters.registry import Clusters
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import USER_AGENT, KubeClient
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import check_shards, wait_for_shards
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store import connection as store
from fleetbus_proto.keys import SnapshotKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections of a process that hosts controllers, and what is built on them."""

    settings: SharedSettings
    bus: Bus
    kv: KeyValue
    redis: Redis
    keys: SnapshotKeys
    writer: SnapshotWriter
    reader: SnapshotReader
    clusters: Clusters
    fleet: Fleet


@asynccontextmanager
async def connect(
    settings: SharedSettings,
    *,
    name: str,
    health: Health | None = None,
    hub_namespace: str = NAMESPACE,
    user_agent: str = USER_AGENT,
) -> AsyncGenerator[Connections]:
    """Connect to NATS and Redis and build the cluster registry.

    The caller runs `connections.clusters.run()`.

    Args:
        settings: where they are.
        name: who we are, like `reconciler`.
        health: of a service, which is not ready and tries again while it cannot connect; a command
            has none, and fails.
        hub_namespace: the namespace of fleetbus on the hub.
        user_agent: shown in the logs of the API servers.

    Raises:
        ConfigError: the providers cannot be built.
        StoreError: without `health`: Redis is unusable, or holds another number of shards.
        BusError: without `health`: NATS is too old, or refuses us.
    """

    def make_client(info: ClusterInfo) -> KubeClient:
        return KubeClient(info.config, user_agent=user_agent)

    if health:
        await wait_for_hub(settings, health)
    clusters = build_clusters(settings, make_client=make_client)
    access = settings.store
    redis = await (store.connect_patiently(access, health) if health else store.connect(access))
    keys = SnapshotKeys(settings.shards)
    try:
        await (wait_for_shards(redis, keys, health) if health else check_shards(redis, keys))
        async with (
            connected(settings.nats, name=name, health=health) as bus,
            agent_calls(bus, name) as calls,
        ):
            clusters.call_agents(
                lambda info: client_through_agent(calls, info.name, user_agent=user_agent)
            )
            reader = SnapshotReader(redis, keys)
            clusters.verify_identities(AcceptedClusters(reader))
            yield Connections(
                settings=settings,
                bus=bus,
                kv=KeyValue(bus),
                redis=redis,
                keys=keys,
                writer=SnapshotWriter(redis, keys),
                reader=reader,
                clusters=clusters,
                fleet=Fleet(clusters, reader, hub_namespace=hub_namespace),
            )
    finally:
        await clusters.aclose()
        await redis.aclose()
