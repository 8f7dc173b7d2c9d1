"""From a change at the API server to the start of its reconcile, at a steady rate.

    python tests/run.py bench.latency [--rate 1000] [--seconds 20] [--json]

All parts run on this machine: emulated API server with the load generator, NATS, Valkey, one
watcher, one projector, two workers. Baseline of the same run: one process with kubernetes_asyncio's
Watch and a queue in memory, which keeps nothing when it dies.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rig.command import run_command
from bench.rig.pipeline import load, make_cluster, pipeline, read_latencies, summarize
from bench.rig.watches import typed_watch, watching
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    rate: int = 1_000
    """Changes per second."""
    seconds: float = 20
    objects: int = 5_000
    workers: int = 2
    warm_up: float = 5
    """Seconds of the same load that are not measured."""


TINY = Sizes(rate=200, seconds=1, objects=100, workers=1, warm_up=1)


async def through_fleetbus(
    cluster: Cluster, folder: Path, kubeconfig: Path, sizes: Sizes
) -> dict[str, Any]:
    async with pipeline(cluster, folder, kubeconfig, workers=sizes.workers) as running:
        await load(cluster, rate=sizes.rate, objects=sizes.objects, seconds=sizes.warm_up)
        begin, before = time.time(), running.cpu()
        changes = await load(cluster, rate=sizes.rate, objects=sizes.objects, seconds=sizes.seconds)
        used = {name: seconds - before[name] for name, seconds in running.cpu().items()}
        await asyncio.sleep(1)
    latencies = [latency for at, latency in read_latencies(running.notes) if at >= begin]
    cpu = {name: round(seconds / changes * 1e6) for name, seconds in used.items()}
    return summarize(latencies) | {"changes": changes, "cpu_us_per_change": cpu}


async def through_a_watch_in_memory(
    cluster: Cluster, kubeconfig: Path, sizes: Sizes
) -> dict[str, Any]:
    """The baseline, in a process of its own: typed Watch → queue → handler."""
    async with watching(typed_watch(kubeconfig)) as peer:
        await load(cluster, rate=sizes.rate, objects=sizes.objects, seconds=sizes.warm_up)
        begin = time.time()
        await load(cluster, rate=sizes.rate, objects=sizes.objects, seconds=sizes.seconds)
        await asyncio.sleep(1)
    return summarize(peer.between(begin, time.time()))


async def measure(sizes: Sizes) -> dict[str, Any]:
    cluster = make_cluster(sizes.objects)
    with scratch_folder("bench") as folder:
        async with serve([cluster]) as servers:
            kubeconfig = folder / "kubeconfig"
            servers.write_kubeconfig(kubeconfig)
            baseline = await through_a_watch_in_memory(cluster, kubeconfig, sizes)
            of_fleetbus = await through_fleetbus(cluster, folder, kubeconfig, sizes)
    return {
        "benchmark": "change to reconcile started",
        "changes_per_second": sizes.rate,
        "seconds": sizes.seconds,
        "unit": "ms",
        "fleetbus": of_fleetbus,
        "baseline: kubernetes_asyncio Watch in one process": baseline,
    }


def show(report: dict[str, Any]) -> None:
    print(f"{report['benchmark']}, {report['changes_per_second']}/s for {report['seconds']} s, ms")
    for name, row in report.items():
        if isinstance(row, dict):
            print(f"  {name}: {row}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
