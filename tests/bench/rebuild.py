"""NATS and Valkey lose everything, and every process is killed: how soon the snapshot is whole.

    python tests/run.py bench.rebuild [--clusters 10] [--objects 50000] [--json]

Real parts on this machine: emulated API servers, NATS, Valkey, one watcher of the pool, the
projector, and a careless controller that deletes each copy whose source the snapshot lacks.
Measured from the start of the new processes, on empty stores, until the snapshot says that it is
complete and holds what the API servers hold. Baseline of the same run: the first start of the same
fleet. Nothing may be deleted, in no cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder

COPIER = str(pathlib.Path(__file__).parents[1] / "support" / "careless_copier.py")
MAPS, KEY = "v1/configmaps", "core/configmaps"
COPIES = 100
LIMIT_SECONDS = 60
_PATIENCE = 600.0


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
        reader = SnapshotReader(redis)
        while time.monotonic() - began < _PATIENCE:
            found = await reader.freshness([cluster.name for cluster in clusters], KEY)
            if all(freshness.is_complete for freshness in found.values()):
                held = [await reader.count(cluster.name, KEY) for cluster in clusters]
                if sum(held) == objects + COPIES:
                    return time.monotonic() - began
            await asyncio.sleep(0.1)
    finally:
        await redis.aclose()
    raise RuntimeError(f"the snapshot is not whole after {_PATIENCE:.0f} s")


def deletions(clusters: Sequence[Cluster]) -> int:
    return sum(
        request.verb.startswith("delete") for cluster in clusters for request in cluster.requests
    )


def started(folder: pathlib.Path, env: dict[str, str]) -> list[Child]:
    commands = {
        "projector": ["fleetbus-reconciler"],
        "pool": ["fleetbus-watcher", "--pool"],
        "controller": ["fleetbus-reconciler", COPIER],
    }
    scripts = pathlib.Path(sys.executable).parent
    copies = {"SOURCE": "bench-0", "TARGET": "bench-1", "SELECTOR": "copied=yes"}
    own = {
        "controller": {
            "FLEETBUS_RECONCILER_PROJECTOR": "false",
            **{f"COPIER_{name}": value for name, value in copies.items()},
        }
    }
    return [
        Child(
            name,
            [str(scripts / command[0]), *command[1:]],
            log=folder / f"{name}.log",
            env=env | own.get(name, {}),
        )
        for name, command in commands.items()
    ]


async def measure(number: int, objects: int) -> dict[str, Any]:
    clusters = [Cluster(f"bench-{index}") for index in range(number)]
    fill(clusters, objects)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_folder("bench-rebuild"))
        servers = await stack.enter_async_context(serve(clusters))
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        env = os.environ | {
            "FLEETBUS_NATS_URL": nats.url,
            "FLEETBUS_REDIS_URL": valkey.url,
            "FLEETBUS_PROVIDERS": json.dumps([{"type": "kubeconfig", "paths": [str(kubeconfig)]}]),
            "FLEETBUS_WATCHER_RESOURCES": json.dumps([MAPS]),
            "FLEETBUS_HEALTH_PORT": "0",
        }
        services = started(folder, env)
        for child in services:
            stack.push_async_callback(child.stop)
        first = await whole(valkey.url, clusters, objects)
        for child in services:
            child.kill()
        nats.kill()
        shutil.rmtree(nats.store_dir / "jetstream")
        await nats.restart()
        await valkey.restart()  # it keeps nothing on disk
        for child in services:
            child.respawn()
        again = await whole(valkey.url, clusters, objects)
        await asyncio.sleep(5)  # what a sweep or the controller would still delete
    deleted = deletions(clusters)
    if deleted:
        raise RuntimeError(f"{deleted} objects were deleted by a loss of stores")
    return {
        "benchmark": "all stores lost, all processes killed",
        "clusters": number,
        "objects": objects,
        "rebuilt_seconds": round(again, 1),
        "limit_seconds": LIMIT_SECONDS,
        "is_met": again < LIMIT_SECONDS,
        "deletions": deleted,
        "baseline_first_start_seconds": round(first, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--objects", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.clusters, given.objects))
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if given.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
