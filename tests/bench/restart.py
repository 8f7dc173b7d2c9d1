"""All workers killed with many objects known: how soon a new worker handles a new change.

    python tests/run.py bench.restart [--objects 100000] [--json]

Real parts on this machine: emulated API server, NATS, Valkey, one watcher, the projector, workers.
Once everything is reconciled, the workers are killed with SIGKILL, a new one is started and an
object is changed in the same moment. Measured from the start of the new process to the reconcile
that read the change, with the code that reconciled the rest and with changed code, which enqueues
everything once more. Baseline of the same run: a bare start, until the same program has imported
all it needs and printed its help.
"""

from __future__ import annotations

import asyncio
import pathlib
import statistics
import subprocess
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, cast

from bench.rig.command import run_command
from fleetbus.store.connection import connect
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.keys import queue
from support.processes.programs import installed
from support.processes.services import Processes

SCRIPT: Final = str(pathlib.Path(__file__).parent / "programs" / "restart_controller.py")
MAPS = "v1/configmaps"
CONTROLLER = "bench"
RECORD = queue(CONTROLLER, "record:bench:core/configmaps")
_PATIENCE = 900.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    objects: int = 100_000
    workers: int = 2
    """Until everything is reconciled."""
    rounds: int = 3
    watch_on: float = 10
    """Seconds in which runs that the change does not explain are counted."""


TINY = Sizes(objects=50, workers=1, rounds=1, watch_on=0.2)


def fill(cluster: Cluster, objects: int) -> None:
    for number in range(objects):
        name = f"map-{number}"
        data = {"turn": "0", "filler": "x" * 300}
        cluster.create(MAPS, {"metadata": {"name": name}, "data": data}, "default")


class Workers:
    """The workers, one after the other, and what their controller wrote down."""

    def __init__(self, services: Processes, cluster: Cluster) -> None:
        self.out = services.folder / "runs"
        self.out.touch()
        self._services = services
        self._cluster = cluster
        self._started = 0

    def start(self) -> Child:
        self._started += 1
        name = f"worker-{self._started}"
        return self._services.reconciler(name, SCRIPT, projector=False, BENCH_OUT=str(self.out))

    def lines(self) -> list[list[str]]:
        return [line.split(" ") for line in self.out.read_text().splitlines()]

    def change(self, turn: int) -> str:
        name = f"map-{turn}"
        self._cluster.patch(MAPS, "default", name, {"data": {"turn": str(turn)}})
        return name

    async def restart(self, turn: int, watch_on: float) -> dict[str, float]:
        """Start a worker, change one object; seconds to its reconcile, and what else ran."""
        before = len(self.lines())
        began = time.time()
        worker = self.start()
        name = self.change(turn)
        try:
            handled = await self._handled(before, name, str(turn))
            await asyncio.sleep(watch_on)
            runs = len(self.lines()) - before
        finally:
            worker.kill()
        return {"seconds": handled - began, "runs": runs}

    async def _handled(self, before: int, name: str, turn: str) -> float:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for at, of, turn_seen in self.lines()[before:]:
                if (of, turn_seen) == (name, turn):
                    return float(at)
            await asyncio.sleep(0.02)
        raise RuntimeError(f"the change of {name} was not handled within 60 s")


async def settled(redis: Any, objects: int) -> None:
    """Wait until everything was reconciled and nothing waits."""
    work = RedisQueue(redis, CONTROLLER)
    deadline = time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < deadline:
            stats = await work.stats()
            recorded = await redis.hlen(RECORD)
            if recorded == objects and not stats.depth and not stats.processing:
                return
            await asyncio.sleep(0.5)
    finally:
        await work.aclose()
    raise RuntimeError("the first reconciles do not end")


def bare_start() -> float:
    """Seconds until the program has imported all it needs."""
    began = time.monotonic()
    subprocess.run(
        installed("fleetbus-reconciler", "--help"), stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began


async def measure(sizes: Sizes) -> dict[str, Any]:
    cluster = Cluster("bench")
    fill(cluster, sizes.objects)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_folder("bench-restart"))
        servers = await stack.enter_async_context(serve([cluster]))
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        redis = await connect(valkey.url)
        stack.push_async_callback(redis.aclose)
        services = Processes(folder, kubeconfig, nats.url, valkey.url, [MAPS])
        projector = services.reconciler("projector")
        stack.push_async_callback(projector.stop)
        await services.ready(projector)
        stack.push_async_callback(services.watcher("bench").stop)
        workers = Workers(services, cluster)
        first = [workers.start() for _ in range(sizes.workers)]
        for worker in first:
            stack.callback(worker.kill)
        began = time.monotonic()
        await settled(redis, sizes.objects)
        first_seconds = time.monotonic() - began
        size = int(await cast("Any", redis.memory_usage(RECORD, samples=0)))
        for worker in first:
            worker.kill()
        starts = [bare_start() for _ in range(sizes.rounds)]
        same = [await workers.restart(turn, sizes.watch_on) for turn in range(1, sizes.rounds + 1)]
        await redis.set(queue(CONTROLLER, "code"), "other")
        other = await workers.restart(sizes.rounds + 1, sizes.watch_on)
    return {
        "benchmark": "a new change after all workers were killed",
        "objects": sizes.objects,
        "first_reconciles_seconds": round(first_seconds, 1),
        "record_bytes_per_object": round(size / sizes.objects),
        "handled_seconds": round(statistics.median(each["seconds"] for each in same), 2),
        "handled_seconds_worst": round(max(each["seconds"] for each in same), 2),
        "runs_after_restart": max(each["runs"] for each in same),
        "handled_seconds_with_changed_code": round(other["seconds"], 2),
        "runs_after_restart_with_changed_code": other["runs"],
        "baseline_bare_start_seconds": round(statistics.median(starts), 2),
    }


def show(report: dict[str, Any]) -> None:
    for name, value in report.items():
        print(f"{name:>40}  {value}")
    print("target: handled_seconds <= 2 for 100,000 objects")


if __name__ == "__main__":
    run_command(measure, show, TINY)
