"""Two replicas of one watcher, one of them always about to die: the longest gap, and what is lost.

    python tests/run.py bench.replicas [--rate 1000] [--kills 6] [--json]

Objects of one emulated cluster change at a steady rate while the replicas are killed with
SIGKILL in turn and started again. A gap is the time from a commit at the API server to the
moment at which the stream stored it. Baseline of the same run: a watcher without a peer, which is
killed and started again as often.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.rig.canned import ALONE, nats_with_stream, watcher_command, write_kubeconfig
from bench.rig.command import run_command
from fleetbus.bus.connection import Bus, connected
from fleetbus_emulator.apiserver import Cluster, Commit, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb
from support.eventually import eventually
from support.rigs.watcher import Stored, read_stream

CONFIG_MAPS = "v1/configmaps"
OBJECTS = 500
TICK = 0.005
WATCHER = ALONE | {
    "FLEETBUS_WATCHER_RESOURCES": '["configmaps"]',
    "FLEETBUS_WATCHER_BACKOFF_FIRST": "100ms",
}
_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    rate: int = 1_000
    """Changes per second."""
    kills: int = 6
    apart: float = 8
    """Seconds between a kill and the next one; the killed one is started again half way."""
    settle: float = 1
    """Seconds before the load, and before the first kill."""


TINY = Sizes(rate=50, kills=1, apart=1, settle=0.1)


@dataclass
class Replicas:
    """The watchers of one cluster as processes, by name."""

    kubeconfig: Path
    nats_url: str
    running: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )

    async def start(self, name: str) -> None:
        self.running[name] = await asyncio.create_subprocess_exec(
            *watcher_command(self.kubeconfig, name),
            env=os.environ | WATCHER | {"FLEETBUS_NATS_URL": self.nats_url},
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def kill(self, name: str) -> None:
        child = self.running.pop(name)
        child.kill()
        await child.wait()

    async def kill_all(self) -> None:
        for name in list(self.running):
            await self.kill(name)


@dataclass(frozen=True, slots=True)
class Figure:
    """One run."""

    replicas: int
    kills: int
    changes: int
    per_second: float
    lost: int
    doubled: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


async def change_for_ever(cluster: Cluster, rate: int) -> None:
    """Change objects in turn; every seventh is deleted and made again under the same name."""
    begun, number = time.monotonic(), 0
    while True:
        while number < (time.monotonic() - begun) * rate:
            number += 1
            name = f"a{number % OBJECTS}"
            if cluster.get(CONFIG_MAPS, "default", name) is None:
                cluster.create(CONFIG_MAPS, _config_map(name, number), "default")
            elif number % 7 == 0:
                cluster.delete(CONFIG_MAPS, "default", name)
            else:
                cluster.patch(CONFIG_MAPS, "default", name, {"data": {"n": str(number)}})
        await asyncio.sleep(TICK)


def _config_map(name: str, number: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"n": str(number), "filler": "x" * 500}}


@asynccontextmanager
async def under_load(cluster: Cluster, rate: int) -> AsyncGenerator[None]:
    load = asyncio.create_task(change_for_ever(cluster, rate))
    try:
        yield
    finally:
        load.cancel()
        await asyncio.wait([load])


async def measure_replicas(folder: Path, names: tuple[str, ...], sizes: Sizes) -> Figure:
    seconds = sizes.kills * sizes.apart + 30
    cluster = Cluster("eu1", event_capacity=4 * sizes.rate * int(seconds))
    async with (
        serve([cluster]) as servers,
        nats_with_stream(folder) as nats,
        connected(nats.url, name="bench") as bus,
    ):
        replicas = Replicas(write_kubeconfig(folder, servers.url("eu1")), nats.url)
        try:
            for name in names:
                await replicas.start(name)
            await eventually(lambda: cluster.open_watches == len(names), _PATIENCE)
            await asyncio.sleep(sizes.settle)
            begun = time.monotonic()
            async with under_load(cluster, sizes.rate):
                await _kill_in_turn(replicas, cluster, names, sizes)
            seconds = time.monotonic() - begun
            stored = await eventually(lambda: _all_stored(bus, cluster), _PATIENCE)
        finally:
            await replicas.kill_all()
    return _figure(len(names), sizes.kills, seconds, cluster, stored)


async def _kill_in_turn(
    replicas: Replicas, cluster: Cluster, names: tuple[str, ...], sizes: Sizes
) -> None:
    await asyncio.sleep(sizes.settle)
    for number in range(sizes.kills):
        name = names[number % len(names)]
        await replicas.kill(name)
        await asyncio.sleep(sizes.apart / 2 if len(names) > 1 else 0)
        await replicas.start(name)
        # The peer must watch again before it is relied on.
        await eventually(lambda: cluster.open_watches == len(names), _PATIENCE)
        await asyncio.sleep(sizes.apart / 2)


async def _all_stored(bus: Bus, cluster: Cluster) -> list[Stored]:
    """Everything on the stream as soon as the last state of each object is there."""
    stored = await read_stream(bus, _PATIENCE)
    last = {change.name: str(change.rv) for change in _changes(cluster)}
    reported = {event.name: event.resource_version for event in map(_live, stored) if event}
    return stored if reported.items() >= last.items() else []


def _changes(cluster: Cluster) -> list[Commit]:
    return [change for change in cluster.history if change.resource == "configmaps"]


def _live(stored: Stored) -> Event | None:
    message = stored.message
    return message if isinstance(message, Event) and message.verb is not Verb.LISTED else None


def _figure(
    replicas: int, kills: int, seconds: float, cluster: Cluster, stored: list[Stored]
) -> Figure:
    commits = {(change.name, str(change.rv)): change.time for change in _changes(cluster)}
    by_change: dict[tuple[str, str], list[float]] = {}
    for each in stored:
        if (event := _live(each)) is None:
            continue
        key = event.name, event.resource_version
        at = datetime.fromisoformat(each.headers["Nats-Time-Stamp"])
        by_change.setdefault(key, []).append((at - commits[key]).total_seconds() * 1000)
    gaps = sorted(min(times) for times in by_change.values())
    return Figure(
        replicas=replicas,
        kills=kills,
        changes=len(commits),
        per_second=round(len(commits) / seconds),
        lost=len(commits.keys() - by_change.keys()),
        doubled=sum(len(times) - 1 for times in by_change.values()),
        p50_ms=round(gaps[len(gaps) // 2], 1),
        p99_ms=round(gaps[len(gaps) * 99 // 100], 1),
        longest_ms=round(gaps[-1], 1),
    )


async def measure(sizes: Sizes) -> list[dict[str, Any]]:
    with scratch_folder("bench-replicas") as folder:
        return [
            asdict(await measure_replicas(folder, names, sizes))
            for names in (("r1", "r2"), ("alone",))
        ]


def show(figures: list[dict[str, Any]]) -> None:
    print("".join(f"{name:>12}" for name in Figure.__slots__))
    for figure in figures:
        print("".join(f"{value:>12,}" for value in figure.values()))
    print("targets of two replicas: lost 0, doubled 0, longest < 1000 ms")


if __name__ == "__main__":
    run_command(measure, show, TINY)
