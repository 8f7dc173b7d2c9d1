"""A fleet of pods in a real snapshot, written by the product's writer, and a query API over it.

`seeded` takes about 150 µs for each pod: 15 s for 100,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bench.rig.processes import process
from bench.rig.realistic_pods import make_pod, name_of, namespace_of
from fleetbus.snapshot import (
    ClusterRecord,
    ResourceRecord,
    ResourceState,
    SnapshotReader,
    SnapshotWriter,
)
from fleetbus.snapshot.write import MAX_BATCH
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_proto.events import EpochEnd, Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import Verb
from support.eventually import eventually
from support.processes.programs import installed

if TYPE_CHECKING:
    from redis.asyncio import Redis

PODS: Final = "core/pods"
_RANK: Final = Rank("2000000", 1)
_NEVER_SILENT: Final = "2099-01-01T00:00:00Z"
"""So that answers are complete however long a benchmark takes."""
_WRITERS: Final = 3
_START_WITHIN: Final = timedelta(minutes=1)
"""For a query API, which takes two seconds of CPU where others may have all of it."""
_OTHERS: Final = (
    *("core/configmaps", "core/services", "core/namespaces", "core/nodes", "core/events"),
    *("core/serviceaccounts", "core/persistentvolumeclaims", "core/endpoints"),
    *("apps/deployments", "apps/replicasets", "apps/statefulsets", "apps/daemonsets"),
    *("batch/jobs", "batch/cronjobs", "autoscaling/horizontalpodautoscalers"),
    *("networking.k8s.io/ingresses", "networking.k8s.io/networkpolicies"),
    *("policy/poddisruptionbudgets", "rbac.authorization.k8s.io/roles"),
    *("rbac.authorization.k8s.io/rolebindings", "storage.k8s.io/storageclasses"),
    *("apiextensions.k8s.io/customresourcedefinitions", "discovery.k8s.io/endpointslices"),
)
"""Resources that each cluster watches besides, without objects."""


class Place(NamedTuple):
    """Where a pod is."""

    cluster: str
    namespace: str
    name: str


def cluster_names(clusters: int) -> list[str]:
    """The names of the clusters, in their order."""
    return [f"cluster-{number:03d}" for number in range(clusters)]


def place_of(index: int, clusters: int) -> Place:
    """Where the pod is: each cluster has every tenth one, if there are ten."""
    return Place(f"cluster-{index % clusters:03d}", namespace_of(index), name_of(index))


async def seed(redis: Redis, *, pods: int, clusters: int, shards: int = 1) -> None:
    """Fill an empty store with the pods, in complete lists."""
    writer = SnapshotWriter(redis, SnapshotKeys(shards))
    await writer.ensure_generation()
    for name in cluster_names(clusters):
        await _put_records(writer, name)
    starts = iter(range(0, pods, MAX_BATCH))

    async def write() -> None:
        for start in starts:
            numbers = range(start, min(start + MAX_BATCH, pods))
            await writer.apply([_event(index, clusters) for index in numbers])

    await asyncio.gather(*(write() for _ in range(_WRITERS)))
    for number, name in enumerate(cluster_names(clusters)):
        await writer.end_epoch(_end(name, len(range(number, pods, clusters))))


async def _put_records(writer: SnapshotWriter, name: str) -> None:
    cluster = ClusterRecord(
        name=name,
        connected=True,
        last_answer=_NEVER_SILENT,
        reported_at=_NEVER_SILENT,
        server_version="v1.33.1",
    )
    await writer.put_cluster(name, cluster)
    for key in (PODS, *_OTHERS):
        group, _, plural = key.partition("/")
        record = ResourceRecord(
            group=group,
            version="v1",
            plural=plural,
            kind="Pod" if key == PODS else plural.removesuffix("s").capitalize(),
            state=ResourceState.SYNCED,
            last_received=_NEVER_SILENT,
        )
        await writer.put_resource_state(name, record)


def _event(index: int, clusters: int) -> Event:
    pod = make_pod(index)
    return Event(
        cluster=place_of(index, clusters).cluster,
        incarnation=Incarnation(1, "kube-system"),
        group="core",
        version="v1",
        resource="pods",
        kind="Pod",
        namespace=pod["metadata"]["namespace"],
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        resource_version=pod["metadata"]["resourceVersion"],
        verb=Verb.LISTED,
        epoch=_RANK,
        observed_at="2026-01-01T00:00:00.000000Z",
        object=msgspec.json.encode(pod),
    )


def _end(cluster: str, count: int) -> EpochEnd:
    return EpochEnd(
        cluster=cluster,
        incarnation=Incarnation(1, "kube-system"),
        group="core",
        version="v1",
        resource="pods",
        kind="Pod",
        epoch=_RANK,
        count=count,
        observed_at="2026-01-01T00:00:00.000000Z",
    )


class SeededStore(NamedTuple):
    """A Valkey with the fleet.

    Attributes:
        bytes: what it has allocated.
    """

    url: str
    pid: int
    redis: Redis
    reader: SnapshotReader
    bytes: int


@asynccontextmanager
async def seeded(folder: Path, *, pods: int, clusters: int) -> AsyncGenerator[SeededStore]:
    """A Valkey of its own with the pods in it."""
    async with valkey_server(dir=folder) as server:
        redis = await connect(server.url)
        try:
            await seed(redis, pods=pods, clusters=clusters)
            used = int((await redis.info("memory"))["used_memory"])
            reader = SnapshotReader(redis, SnapshotKeys())
            yield SeededStore(server.url, server.pid, redis, reader, used)
        finally:
            await redis.aclose()


class ApiProcess(NamedTuple):
    """A query API."""

    url: str
    pid: int


@asynccontextmanager
async def query_api(
    folder: Path, redis_url: str, *, nats_url: str = "", **settings: str
) -> AsyncGenerator[ApiProcess]:
    """The query API as a process, on loopback, without authentication and limits per second.

    Args:
        folder: for its port.
        redis_url: its store.
        nats_url: for questions about the past; empty for none.
        settings: more environment variables, without `FLEETBUS_QUERY_API_`.
    """
    port_file = folder / "query-api.port"
    port_file.unlink(missing_ok=True)
    variables = {
        "AUTHENTICATION": "none",
        "USER_REQUESTS_PER_SECOND": "1000000",
        "USER_CONCURRENCY": "1000",
        "PORT_FILE": str(port_file),
        "HISTORY": "true" if nats_url else "false",
        **settings,
    }
    environment = {f"FLEETBUS_QUERY_API_{name}": value for name, value in variables.items()}
    shared = {"FLEETBUS_REDIS_URL": redis_url, "FLEETBUS_HEALTH_PORT": "0"}
    shared |= {"FLEETBUS_NATS_URL": nats_url} if nats_url else {}
    async with process(installed("fleetbus-query-api"), **environment, **shared) as child:
        await eventually(
            lambda: child.returncode is not None or port_file.exists(), within=_START_WITHIN
        )
        if child.returncode is not None:
            raise RuntimeError(f"the query API ended with exit status {child.returncode}")
        yield ApiProcess(f"http://127.0.0.1:{port_file.read_text().strip()}", child.pid)
