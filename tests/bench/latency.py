"""From a change at the API server to the start of its reconcile, at a steady rate.

    python tests/run.py bench.latency [--rate 1000] [--seconds 20] [--json]

All parts run on this machine: emulated API server with the load generator, NATS, Valkey, one
watcher, one projector, two workers. Baseline of the same run: one process with kubernetes_asyncio's
Watch and a queue in memory, which keeps nothing when it dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from support.processes.programs import module
from support.processes.services import Processes

CONTROLLER: Final = str(pathlib.Path(__file__).parent / "programs" / "latency_controller.py")
PODS = "v1/pods"
AT = "bench.fleetbus.dev/at"
TICK = 0.01
_STOP_PATIENCE = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rate: int = 1_000
    """Changes per second."""
    seconds: float = 20
    objects: int = 5_000
    workers: int = 2
    warm_up: float = 3
    """Seconds of the same load that are not measured."""
    start: float = 6
    """Seconds in which the workers start."""


TINY = Sizes(rate=200, seconds=1, objects=100, workers=1, warm_up=0.5, start=1)


def pod(number: int) -> dict[str, Any]:
    """About 1.5 KB, as most objects of Kubernetes have."""
    filler = {f"bench.fleetbus.dev/filler-{i}": "x" * 80 for i in range(10)}
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"app": "bench"}, "annotations": filler},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }


async def load(cluster: Cluster, sizes: Sizes, seconds: float) -> int:
    """Change objects in turn at a steady rate; answers how many changes were made."""
    loop = asyncio.get_running_loop()
    start, done = loop.time(), 0
    while (passed := loop.time() - start) < seconds:
        while done < passed * sizes.rate:
            at = {"metadata": {"annotations": {AT: repr(time.time())}}}
            cluster.patch(PODS, "default", f"pod-{done % sizes.objects}", at)
            done += 1
        await asyncio.sleep(TICK)
    return done


async def through_fleetbus(
    cluster: Cluster, folder: pathlib.Path, kubeconfig: pathlib.Path, sizes: Sizes
) -> dict[str, Any]:
    out = folder / "latencies"
    out.mkdir()
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        services = Processes(folder, kubeconfig, nats.url, valkey.url, [PODS])
        pids = {"nats": nats.pid, "valkey": valkey.pid, "apiserver": os.getpid()}

        async def started(child: Child) -> None:
            stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
            pids[child.name] = child.pid
            await services.ready(child)

        await started(services.reconciler("projector"))
        await started(services.watcher(cluster.name))
        begin = time.time() + sizes.warm_up + sizes.start
        notes = {"BENCH_OUT": str(out), "BENCH_START": repr(begin)}
        for number in range(1, sizes.workers + 1):
            name = f"worker-{number}"
            await started(services.reconciler(name, CONTROLLER, projector=False, **notes))
        await load(cluster, sizes, begin - time.time())
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        changes = await load(cluster, sizes, sizes.seconds)
        cpu = {
            name: round((cpu_seconds(pid) - before[name]) / changes * 1e6)
            for name, pid in pids.items()
        }
        await asyncio.sleep(1)
    found = [value for path in out.glob("*.json") for value in json.loads(path.read_text())]
    return summary(found) | {"changes": changes, "cpu_us_per_change": cpu}


async def through_a_watch_in_memory(
    cluster: Cluster, kubeconfig: pathlib.Path, sizes: Sizes
) -> dict[str, Any]:
    """The baseline, in a process of its own: typed Watch → queue → handler."""
    process = await asyncio.create_subprocess_exec(
        *module("bench.programs.latency_baseline", str(kubeconfig)),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it is watching
    await load(cluster, sizes, sizes.warm_up)
    await load(cluster, sizes, sizes.seconds)
    await asyncio.sleep(1)
    process.terminate()
    answer, _ = await process.communicate()
    return summary(json.loads(answer)[round(sizes.rate * sizes.warm_up) :])


def summary(latencies: list[float]) -> dict[str, Any]:
    if len(latencies) < 100:
        return {"runs": len(latencies), "error": "too few reconciles were seen"}
    cuts = statistics.quantiles(latencies, n=1000)
    milliseconds = {"p50": cuts[499], "p90": cuts[899], "p99": cuts[989], "max": max(latencies)}
    rounded = {name: round(value * 1000, 2) for name, value in milliseconds.items()}
    return {"runs": len(latencies)} | rounded


async def measure(sizes: Sizes) -> dict[str, Any]:
    cluster = Cluster("bench")
    for number in range(sizes.objects):
        cluster.create(PODS, pod(number), "default")
    with scratch_folder("bench") as folder:
        async with serve([cluster]) as servers:
            kubeconfig = folder / "kubeconfig"
            servers.write_kubeconfig(kubeconfig)
            baseline = await through_a_watch_in_memory(cluster, kubeconfig, sizes)
            ours = await through_fleetbus(cluster, folder, kubeconfig, sizes)
    return {
        "benchmark": "change to reconcile started",
        "changes_per_second": sizes.rate,
        "seconds": sizes.seconds,
        "unit": "ms",
        "fleetbus": ours,
        "baseline: kubernetes_asyncio Watch in one process": baseline,
    }


def show(report: dict[str, Any]) -> None:
    print(f"{report['benchmark']}, {report['changes_per_second']}/s for {report['seconds']} s, ms")
    for name, row in report.items():
        if isinstance(row, dict):
            print(f"  {name}: {row}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
