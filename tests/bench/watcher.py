"""One watcher's throughput and memory, beside its floor and kubernetes_asyncio in the same run.

    python tests/run.py bench.watcher [--json]

A server process sends the same canned pod events to each contender in turn; each contender is a
process of its own. The floor reads, splits, cuts, packs and publishes, and does nothing else.
CPU is that of the contender alone; NATS and the server take their share of the same cores.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.rig.canned import (
    ALONE,
    canned_apiserver,
    nats_with_stream,
    watcher_command,
    write_kubeconfig,
)
from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds, process, rss_mb
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import stream_info
from fleetbus_emulator.scratch import scratch_folder
from support.processes.programs import module


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    events: int = 40_000
    typed_events: int = 4_000
    small: int = 1_000
    large: int = 100_000
    """The memory that `small` and `large` lists take; 0 leaves it out."""
    rounds: int = 3


TINY = Sizes(events=1_000, typed_events=150, small=0, large=0, rounds=1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender."""

    contender: str
    per_second: int
    cpu_us: float


async def stored(nats_url: str, at_least: int, pid: int) -> tuple[float, float]:
    """Wait until so many messages are stored; seconds and CPU from the first tenth on."""
    async with connected(nats_url, name="count") as bus:
        begun: tuple[float, float, int] | None = None
        while True:
            info = await stream_info(bus)
            count = info["state"]["messages"] if info else 0
            if begun is None and count > at_least / 10:
                begun = (time.perf_counter(), cpu_seconds(pid), count)
            if begun is not None and count >= at_least:
                share = max(count - begun[2], 1) / at_least
                seconds = (time.perf_counter() - begun[0]) / share
                return seconds, (cpu_seconds(pid) - begun[1]) / share
            await asyncio.sleep(0.02)


async def measure_contender(folder: Path, contender: str, events: int) -> Figure:
    async with (
        canned_apiserver(folder, 0, events) as url,
        nats_with_stream(folder) as nats,
    ):
        if contender == "floor":
            command = module("bench.programs.watcher_floor", url, nats.url)
        else:
            command = watcher_command(write_kubeconfig(folder, url))
        async with process(command, FLEETBUS_NATS_URL=nats.url, **ALONE) as child:
            seconds, cpu = await stored(nats.url, events, child.pid)
    return Figure(contender, round(events / seconds), round(cpu / events * 1e6, 1))


async def measure_typed(folder: Path, events: int) -> Figure:
    async with canned_apiserver(folder, 0, events) as url:
        words = (str(write_kubeconfig(folder, url)), str(events))
        async with process(module("bench.programs.typed_watch", *words)) as child:
            out, _ = await child.communicate()
    cpu_us = float(out)
    return Figure("kubernetes_asyncio, typed, only reads", round(1e6 / cpu_us), round(cpu_us, 1))


async def measure_memory(folder: Path, objects: int) -> float:
    """RSS of a watcher after it listed so many objects."""
    async with (
        canned_apiserver(folder, objects, 0) as url,
        nats_with_stream(folder) as nats,
    ):
        command = watcher_command(write_kubeconfig(folder, url))
        async with process(command, FLEETBUS_NATS_URL=nats.url, **ALONE) as child:
            await stored(nats.url, objects, child.pid)
            await asyncio.sleep(1)
            return rss_mb(child.pid)


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench-watcher") as folder:
        best: list[Figure] = []
        for contender in ("floor", "watcher"):
            runs = [
                await measure_contender(folder, contender, sizes.events)
                for _ in range(sizes.rounds)
            ]
            best.append(min(runs, key=lambda figure: figure.cpu_us))
        floor, of_fleetbus = best
        typed = await measure_typed(folder, sizes.typed_events)
        memory = {
            count: round(await measure_memory(folder, count), 1)
            for count in (sizes.small, sizes.large)
            if count
        }
    return {
        "figures": [asdict(figure) for figure in (floor, of_fleetbus, typed)],
        "of_the_floor": round(of_fleetbus.per_second / floor.per_second, 2),
        "times_typed_watch": round(typed.cpu_us / max(of_fleetbus.cpu_us, 0.1), 1),
        "rss_mb": memory,
        "rss_growth_mb": round(memory.get(sizes.large, 0) - memory.get(sizes.small, 0), 1),
    }


def show(report: dict[str, Any]) -> None:
    print(f"{'contender':40}{'events/s':>10}{'CPU us/event':>15}")
    for figure in report["figures"]:
        print(f"{figure['contender']:40}{figure['per_second']:>10,}{figure['cpu_us']:>15}")
    for name in ("of_the_floor", "times_typed_watch", "rss_mb", "rss_growth_mb"):
        print(f"{name:40}{report[name]!s:>25}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
