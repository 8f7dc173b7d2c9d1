"""A fleet of one cluster whose snapshot the test writes itself."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

import fleetbus
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

PODS = "v1/pods"


@asynccontextmanager
async def fleet_of(redis: Redis, folder: pathlib.Path) -> AsyncGenerator[tuple[Fleet, Cluster]]:
    """A fleet of eu1, whose API server answers, and us1, which has no access data."""
    server = Cluster("eu1")
    async with serve([server]) as servers:
        path = folder / "kubeconfig"
        servers.write_kubeconfig(path)
        clusters = Clusters(
            [],
            hub=ClusterInfo(
                name="eu1",
                hub=True,
                labels={"region": "eu"},
                provider="test",
                config=read_kube_config(path),
            ),
        )
        try:
            yield Fleet(clusters, SnapshotReader(redis, SnapshotKeys())), server
        finally:
            await clusters.aclose()


async def mark_synced(snapshot: Snapshot, state: ResourceState) -> None:
    record = ResourceRecord(group="core", version="v1", plural="pods", state=state, epoch="1 1")
    await snapshot.writer.put_resource_state("eu1", record)


@dataclass
class Rig:
    """A snapshot of pods that the test writes, and the cluster that it is of."""

    snapshot: Snapshot
    cluster: fleetbus.Cluster
    server: Cluster
    fleet: Fleet

    async def show(self, name: str = "web", **metadata: Any) -> dict[str, Any]:
        """Bring the snapshot up to date with a pod in `prod`, as a watcher would.

        Args:
            name: of the pod.
            metadata: what the watcher shows instead of what the server has.
        """
        obj = self.server.get(PODS, "prod", name)
        assert obj is not None
        metadata_shown = {
            k: v for k, v in obj["metadata"].items() if k != "managedFields"
        } | metadata
        tree = {**obj, "metadata": metadata_shown}
        version, uid = metadata_shown["resourceVersion"], metadata_shown["uid"]
        event = Source().modified(name, version, uid=uid, body=orjson.dumps(tree))
        await self.snapshot.apply(event)
        return tree


@asynccontextmanager
async def one_cluster(redis: Redis, folder: pathlib.Path) -> AsyncGenerator[Rig]:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await mark_synced(snapshot, ResourceState.SYNCED)
    async with fleet_of(redis, folder) as (fleet, server):
        server.create("v1/namespaces", {"metadata": {"name": "prod"}})
        yield Rig(snapshot, fleet.cluster("eu1"), server, fleet)
