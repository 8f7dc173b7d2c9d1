"""A cluster under a steady load, and the processes that a change of it goes through."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bench.rig.processes import cpu_seconds, wake_ups
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster
from support.processes.services import Processes

CONTROLLER: Final = str(Path(__file__).parents[1] / "programs" / "latency_controller.py")
PODS: Final = "v1/pods"
AT: Final = "bench.fleetbus.dev/at"
_TICK: Final = 0.01
_STOP_PATIENCE: Final = timedelta(seconds=20)


def make_pod(number: int) -> dict[str, Any]:
    """About 1.5 KB, as most objects of Kubernetes have."""
    filler = {f"bench.fleetbus.dev/filler-{i}": "x" * 80 for i in range(10)}
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"app": "bench"}, "annotations": filler},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }


def make_cluster(objects: int) -> Cluster:
    """A cluster with so many pods."""
    cluster = Cluster("bench")
    for number in range(objects):
        cluster.create(PODS, make_pod(number), "default")
    return cluster


async def load(cluster: Cluster, *, rate: float, objects: int, seconds: float) -> int:
    """Change objects in turn at a steady rate; returns how many changes were made."""
    loop = asyncio.get_running_loop()
    start, done = loop.time(), 0
    while (passed := loop.time() - start) < seconds:
        while done < passed * rate:
            at = {"metadata": {"annotations": {AT: repr(time.time())}}}
            cluster.patch(PODS, "default", f"pod-{done % objects}", at)
            done += 1
        await asyncio.sleep(_TICK)
    return done


@dataclass(frozen=True)
class Pipeline:
    """The running processes.

    Attributes:
        pids: by the name of the process; `apiserver` is this process.
        redis_url: of the store.
        notes: the folder in which the workers leave their latencies when they end.
    """

    pids: dict[str, int]
    redis_url: str
    notes: Path

    def cpu(self) -> dict[str, float]:
        """The CPU seconds that each process has used."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def wake_ups(self) -> dict[str, int]:
        """Return how often each process was woken."""
        return {name: wake_ups(pid) for name, pid in self.pids.items()}


@asynccontextmanager
async def pipeline(
    cluster: Cluster, folder: Path, kubeconfig: Path, *, workers: int, **environment: str
) -> AsyncGenerator[Pipeline]:
    """NATS, a store, a projector, a watcher and workers, until the block ends.

    Without workers the process of the projector hosts the controller, too.
    """
    notes = folder / "latencies"
    notes.mkdir()
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        services = Processes(folder, kubeconfig, nats.url, valkey.url, [PODS])
        pids = {"nats": nats.pid, "valkey": valkey.pid, "apiserver": os.getpid()}

        async def started(child: Child) -> None:
            stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
            pids[child.name] = child.pid
            await services.ready(child)

        environment |= {"BENCH_OUT": str(notes)}
        hosted = () if workers else (CONTROLLER,)
        await started(services.reconciler("projector", *hosted, projector=True, **environment))
        await started(services.watcher(cluster.name))
        for number in range(1, workers + 1):
            name = f"worker-{number}"
            await started(services.reconciler(name, CONTROLLER, projector=False, **environment))
        yield Pipeline(pids, valkey.url, notes)


def read_latencies(notes: Path) -> list[tuple[float, float]]:
    """Each run's (time of the change, seconds to its start), once the workers have ended."""
    runs_read = (json.loads(path.read_text())["latencies"] for path in notes.glob("*.json"))
    return [(at, latency) for runs in runs_read for at, latency in runs]


def summarize(latencies: list[float]) -> dict[str, Any]:
    """Quantiles in milliseconds."""
    if len(latencies) < 10:
        return {"runs": len(latencies), "error": "too few reconciles were seen"}
    cuts = statistics.quantiles(latencies, n=1000)
    milliseconds = {"p50": cuts[499], "p90": cuts[899], "p99": cuts[989], "max": max(latencies)}
    rounded = {name: round(value * 1000, 2) for name, value in milliseconds.items()}
    return {"runs": len(latencies)} | rounded
