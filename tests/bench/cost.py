"""Measure the cost of one change for each process, at several rates, and that of idle processes.

    python tests/run.py bench.cost [--seconds 20] [--json]

One cluster, one watcher, a projector and two workers, as in bench.latency; then one process that is
both projector and worker. For each rate: CPU of each process per change, scripts, commands and
reads of the store per change, turns of the event loop and sends of the workers per run, wake-ups
per second, and the latencies. Baselines of the same run, with the same changes:
kubernetes_asyncio's Watch, and client-go's informer where Go is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.rig.command import run_command
from bench.rig.pipeline import (
    Pipeline,
    load,
    make_cluster,
    pipeline,
    read_latencies,
    summarize,
)
from bench.rig.watches import typed_watch, watching
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from support.processes.go_informer import find_go_program

_SCRIPTS = ("eval", "evalsha", "fcall")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    seconds: float = 20
    """For each rate, and for the time without changes."""
    slow: int = 10
    medium: int = 100
    fast: int = 1_000
    """Changes per second."""
    objects: int = 5_000
    workers: int = 2
    warm_up: float = 5
    further: int = 5
    """Controllers beside the one that is measured."""


TINY = Sizes(seconds=1, slow=20, medium=50, fast=100, objects=100, workers=1, warm_up=1, further=1)


def rates(sizes: Sizes) -> Iterator[int]:
    yield from (sizes.slow, sizes.medium, sizes.fast)


async def count_commands(redis: Redis) -> dict[str, float]:
    """Commands, scripts and reads that the store has executed."""
    stats = await redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    everything = await redis.info("stats")
    return {
        "scripts": sum(calls.get(name, 0) for name in _SCRIPTS),
        "commands": sum(calls.values()),
        "reads": everything["total_reads_processed"],
    }


@dataclass(frozen=True)
class Window:
    """One measured time, in seconds since the epoch; `changes` is 0 for the time without any."""

    rate: int
    changes: int
    begin: float
    end: float
    cpu: dict[str, float]
    store: dict[str, float]
    wake_ups: dict[str, int]


async def observe(
    running: Pipeline, redis: Redis, cluster: Cluster, sizes: Sizes, rate: int
) -> Window:
    async def change(seconds: float) -> int:
        return await load(cluster, rate=rate, objects=sizes.objects, seconds=seconds)

    await change(sizes.warm_up)
    begin = time.time()
    cpu, store, woken = running.cpu(), await count_commands(redis), running.wake_ups()
    changes = await change(sizes.seconds)
    end = time.time()
    return Window(
        rate,
        changes,
        begin,
        end,
        {name: used - cpu[name] for name, used in running.cpu().items()},
        {name: count - store[name] for name, count in (await count_commands(redis)).items()},
        {name: count - woken[name] for name, count in running.wake_ups().items()},
    )


async def through_fleetbus(
    cluster: Cluster, folder: Path, kubeconfig: Path, sizes: Sizes, *, workers: int
) -> list[dict[str, Any]]:
    folder.mkdir()
    async with pipeline(cluster, folder, kubeconfig, workers=workers, BENCH_COUNT="1") as running:
        redis = Redis.from_url(running.redis_url)
        try:
            windows = [
                await observe(running, redis, cluster, sizes, rate) for rate in (0, *rates(sizes))
            ]
        finally:
            await redis.aclose()
        await asyncio.sleep(1)
    latencies, counts = read_latencies(running.notes), read_counts(running.notes)
    return [describe(window, latencies, counts) for window in windows]


async def calm(running: Pipeline) -> None:
    """Wait until the first runs of all objects are over."""
    while True:
        before = running.cpu()
        await asyncio.sleep(2)
        spent = {name: used - before[name] for name, used in running.cpu().items()}
        if max(spent.values()) < 0.4:
            return


async def with_further_controllers(
    cluster: Cluster, folder: Path, kubeconfig: Path, sizes: Sizes
) -> dict[str, float]:
    """CPU per change of one more controller in the process, by what it does with the changes."""
    spent: dict[str, float] = {}
    for kind in ("", "elsewhere", "refuses", "runs"):
        place = folder / f"further-{kind}"
        place.mkdir()
        number = str(sizes.further)
        async with pipeline(
            cluster, place, kubeconfig, workers=1, BENCH_FURTHER=kind, BENCH_FURTHER_NUMBER=number
        ) as running:
            await calm(running)
            before = running.cpu()
            seconds, rate = sizes.seconds, sizes.medium
            changes = await load(cluster, rate=rate, objects=sizes.objects, seconds=seconds)
            await calm(running)  # a machine that is busy with others is late
            used = {name: cpu - before[name] for name, cpu in running.cpu().items()}
        ours = sum(cpu for name, cpu in used.items() if name != "apiserver")
        spent[kind] = ours / changes * 1e3
    return {
        kind: round((each - spent[""]) / sizes.further, 3) for kind, each in spent.items() if kind
    } | {"first": round(spent[""], 3)}


def read_counts(notes: Path) -> list[list[tuple[float, ...]]]:
    """Read from each worker: times, and runs, turns, sends and more until then."""
    return [json.loads(path.read_text())["counts"] for path in notes.glob("*.json")]


def describe(
    window: Window,
    latencies: list[tuple[float, float]],
    counts: list[list[tuple[float, ...]]],
) -> dict[str, Any]:
    seconds = window.end - window.begin
    row: dict[str, Any] = {
        "rate": window.rate,
        "wake_ups_per_s": {name: round(n / seconds) for name, n in window.wake_ups.items()},
        "cpu_percent": {name: round(n / seconds * 100, 1) for name, n in window.cpu.items()},
    }
    if not window.changes:
        return row
    own_cpu = {name: n for name, n in window.cpu.items() if name != "apiserver"}
    per_change = {name: round(n / window.changes * 1e3, 3) for name, n in own_cpu.items()}
    workers = (n for name, n in per_change.items() if name.startswith("worker"))
    inside = [latency for at, latency in latencies if window.begin <= at < window.end]
    return row | {
        "changes": window.changes,
        "cpu_ms_per_change": per_change,
        "cpu_ms_per_change_total": round(sum(per_change.values()), 3),
        "cpu_ms_per_change_workers": round(sum(workers), 3),
        "store_per_change": {n: round(v / window.changes, 2) for n, v in window.store.items()},
        "per_run": per_run(window, counts),
        "latency": summarize(inside),
    }


def per_run(window: Window, counts: list[list[tuple[float, ...]]]) -> dict[str, float | None]:
    total = [0, 0, 0]
    for of_one in counts:
        inside = [sample for sample in of_one if window.begin <= sample[0] < window.end]
        if inside:
            total = [total[i] + inside[-1][i + 1] - inside[0][i + 1] for i in range(3)]
    runs, turns, sends = total
    if not runs:
        return {"turns": None, "sends": None}
    return {"turns": round(turns / runs, 1), "sends": round(sends / runs, 1)}


async def through_a_peer(
    cluster: Cluster, command: list[str], sizes: Sizes
) -> list[dict[str, Any]]:
    windows: list[tuple[int, float, float, float]] = []
    async with watching(command) as peer:
        for rate in rates(sizes):
            await load(cluster, rate=rate, objects=sizes.objects, seconds=sizes.warm_up)
            begin, before = time.time(), peer.cpu()
            changes = await load(cluster, rate=rate, objects=sizes.objects, seconds=sizes.seconds)
            spent = (peer.cpu() - before) / changes * 1e3
            windows.append((rate, begin, time.time(), spent))
        await asyncio.sleep(1)
    return [
        {
            "rate": rate,
            "cpu_ms_per_change_total": round(spent, 3),
            "latency": summarize(peer.between(begin, end)),
        }
        for rate, begin, end, spent in windows
    ]


async def measure(sizes: Sizes) -> dict[str, Any]:
    cluster = make_cluster(sizes.objects)
    figures: dict[str, Any] = {}
    with scratch_folder("bench") as folder:
        async with serve([cluster]) as servers:
            kubeconfig = folder / "kubeconfig"
            servers.write_kubeconfig(kubeconfig)
            figures["kubernetes_asyncio Watch"] = await through_a_peer(
                cluster, typed_watch(kubeconfig), sizes
            )
            if program := await asyncio.to_thread(find_go_program):
                figures["client-go informer"] = await through_a_peer(
                    cluster, [str(program), str(kubeconfig)], sizes
                )
            for name, workers in (("apart", sizes.workers), ("in one process", 0)):
                figures[f"fleetbus, {name}"] = await through_fleetbus(
                    cluster, folder / name, kubeconfig, sizes, workers=workers
                )
            figures["a further controller, CPU ms per change"] = [
                await with_further_controllers(cluster, folder, kubeconfig, sizes)
            ]
    return figures


def show(figures: dict[str, Any]) -> None:
    for name, rows in figures.items():
        print(name)
        for row in rows:
            print(f"  {row.pop('rate')}/s" if row.get("rate") else "  without changes")
            for label, value in row.items():
                print(f"    {label}: {value}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
