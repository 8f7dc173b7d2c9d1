"""NATS and Valkey lose everything, and every process is killed: how soon the snapshot is whole.

    python tests/run.py bench.rebuild [--clusters 10] [--objects 50000] [--json]

Real parts on this machine: emulated API servers, NATS, Valkey, one watcher of the pool, the
projector, and a careless controller that deletes each copy whose source the snapshot lacks.
Measured from the start of the new processes, on empty stores, until the snapshot says that it is
complete and holds what the API servers hold. Baseline of the same run: the first start of the same
fleet. Nothing may be deleted, in no cluster.
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bench.rig.command import run_command
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.keys import SnapshotKeys
from support.processes.services import Processes

COPIER = str(pathlib.Path(__file__).parents[1] / "scripts" / "careless_copier.py")
MAPS, KEY = "v1/configmaps", "core/configmaps"
COPIES = 100
LIMIT_SECONDS = 60
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 10
    objects: int = 50_000
    watch_on: float = 5
    """Seconds in which a sweep or the controller may still delete something."""


TINY = Sizes(clusters=2, objects=300, watch_on=0.2)


def fill(clusters: Sequence[Cluster], objects: int) -> None:
    for number in range(objects):
        cluster = clusters[number % len(clusters)]
        is_copied = cluster is clusters[0] and number < COPIES * len(clusters)
        labels = {"copied": "yes"} if is_copied else {}
        data = {"filler": "x" * 300}
        metadata = {"name": f"map-{number}", "labels": labels}
        cluster.create(MAPS, {"metadata": metadata, "data": data}, "default")


async def whole(url: str, clusters: Sequence[Cluster], objects: int) -> float:
    """Wait until the snapshot is complete, with every copy; the seconds it took."""
    began = time.monotonic()
    redis = await connect(url)
    try:
        reader = SnapshotReader(redis, SnapshotKeys())
        while time.monotonic() - began < _PATIENCE:
            by_cluster = await reader.freshness([cluster.name for cluster in clusters], KEY)
            if all(freshness.is_complete for freshness in by_cluster.values()):
                counts = [await reader.count(cluster.name, KEY) for cluster in clusters]
                if sum(counts) == objects + COPIES:
                    return time.monotonic() - began
            await asyncio.sleep(0.1)
    finally:
        await redis.aclose()
    raise RuntimeError(f"the snapshot is not whole after {_PATIENCE:.0f} s")


def deletions(clusters: Sequence[Cluster]) -> int:
    return sum(
        request.verb.startswith("delete") for cluster in clusters for request in cluster.requests
    )


def started(services: Processes) -> list[Child]:
    copies = {
        "COPIER_SOURCE": "bench-0",
        "COPIER_TARGET": "bench-1",
        "COPIER_SELECTOR": "copied=yes",
    }
    return [
        services.reconciler("projector"),
        services.pool_watcher("pool"),
        services.reconciler("controller", COPIER, projector=False, **copies),
    ]


async def measure(sizes: Sizes) -> dict[str, Any]:
    clusters = [Cluster(f"bench-{index}") for index in range(sizes.clusters)]
    fill(clusters, sizes.objects)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_folder("bench-rebuild"))
        servers = await stack.enter_async_context(serve(clusters))
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        services = started(Processes(folder, kubeconfig, nats.url, valkey.url, [MAPS]))
        for child in services:
            stack.push_async_callback(child.stop)
        first = await whole(valkey.url, clusters, sizes.objects)
        for child in services:
            child.kill()
        nats.kill()
        shutil.rmtree(nats.store_dir / "jetstream")
        await nats.restart()
        await valkey.restart()  # it keeps nothing on disk
        for child in services:
            child.respawn()
        again = await whole(valkey.url, clusters, sizes.objects)
        await asyncio.sleep(sizes.watch_on)
    deleted = deletions(clusters)
    if deleted:
        raise RuntimeError(f"{deleted} objects were deleted by a loss of stores")
    return {
        "benchmark": "all stores lost, all processes killed",
        "clusters": sizes.clusters,
        "objects": sizes.objects,
        "rebuilt_seconds": round(again, 1),
        "limit_seconds": LIMIT_SECONDS,
        "is_met": again < LIMIT_SECONDS,
        "deletions": deleted,
        "baseline_first_start_seconds": round(first, 1),
    }


def show(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
