"""Two replicas of one watcher, one of them always about to die: the longest gap, and what is lost.

    python tests/run.py bench.twins [--rate 1000] [--kills 6] [--json]

Objects of one emulated cluster change at a steady rate while the replicas are killed with
SIGKILL in turn and started again. A gap is the time from a commit at the API server to the
moment at which the stream stored it. Baseline of the same run: a watcher without a twin, which is
killed and started again as often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventually import eventually
from watcher_rig import Stored, read_stream

from bench.watcher import ALONE, bus, watcher_command, write_kubeconfig
from fleetbus.bus.connection import connected
from fleetbus.process.logs import set_up_logs
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fleetbus.bus.connection import Bus
    from fleetbus_emulator.apiserver import Commit

CONFIG_MAPS = "v1/configmaps"
OBJECTS = 500
TICK = 0.005
APART = 8.0
"""Between a kill and the next one; the killed replica is started again half way."""
WATCHER = ALONE | {
    "FLEETBUS_WATCHER_RESOURCES": '["configmaps"]',
    "FLEETBUS_WATCHER_BACKOFF_FIRST": "100ms",
}
_PATIENCE = timedelta(seconds=60)


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
            sys.executable,
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


async def measure(folder: Path, names: tuple[str, ...], rate: int, kills: int) -> Figure:
    cluster = Cluster("eu1", event_capacity=4 * rate * int(kills * APART + 30))
    async with (
        serve([cluster]) as servers,
        bus(folder) as nats_url,
        connected(nats_url, name="bench") as link,
    ):
        replicas = Replicas(write_kubeconfig(folder, servers.url("eu1")), nats_url)
        try:
            for name in names:
                await replicas.start(name)
            await eventually(lambda: cluster.open_watches == len(names), _PATIENCE)
            await asyncio.sleep(1)
            begun = time.monotonic()
            async with under_load(cluster, rate):
                await _kill_in_turn(replicas, cluster, names, kills)
            seconds = time.monotonic() - begun
            stored = await eventually(lambda: _all_stored(link, cluster), _PATIENCE)
        finally:
            await replicas.kill_all()
    return _figure(len(names), kills, seconds, cluster, stored)


async def _kill_in_turn(
    replicas: Replicas, cluster: Cluster, names: tuple[str, ...], kills: int
) -> None:
    await asyncio.sleep(1)
    for number in range(kills):
        name = names[number % len(names)]
        await replicas.kill(name)
        await asyncio.sleep(APART / 2 if len(names) > 1 else 0)
        await replicas.start(name)
        # The twin must watch again before it is relied on.
        await eventually(lambda: cluster.open_watches == len(names), _PATIENCE)
        await asyncio.sleep(APART / 2)


async def _all_stored(link: Bus, cluster: Cluster) -> list[Stored]:
    """Everything on the stream as soon as the last state of each object is there."""
    stored = await read_stream(link, _PATIENCE)
    last = {change.name: str(change.rv) for change in _changes(cluster)}
    told = {event.name: event.resource_version for event in map(_live, stored) if event}
    return stored if told.items() >= last.items() else []


def _changes(cluster: Cluster) -> list[Commit]:
    return [change for change in cluster.history if change.resource == "configmaps"]


def _live(stored: Stored) -> Event | None:
    message = stored.message
    return message if isinstance(message, Event) and message.verb is not Verb.LISTED else None


def _figure(
    replicas: int, kills: int, seconds: float, cluster: Cluster, stored: list[Stored]
) -> Figure:
    commits = {(change.name, str(change.rv)): change.time for change in _changes(cluster)}
    found: dict[tuple[str, str], list[float]] = {}
    for each in stored:
        if (event := _live(each)) is None:
            continue
        key = event.name, event.resource_version
        at = datetime.fromisoformat(each.headers["Nats-Time-Stamp"])
        found.setdefault(key, []).append((at - commits[key]).total_seconds() * 1000)
    gaps = sorted(min(times) for times in found.values())
    return Figure(
        replicas=replicas,
        kills=kills,
        changes=len(commits),
        per_second=round(len(commits) / seconds),
        lost=len(commits.keys() - found.keys()),
        doubled=sum(len(times) - 1 for times in found.values()),
        p50_ms=round(gaps[len(gaps) // 2], 1),
        p99_ms=round(gaps[len(gaps) * 99 // 100], 1),
        longest_ms=round(gaps[-1], 1),
    )


async def main(rate: int, kills: int, *, as_json: bool) -> None:
    set_up_logs("text", "warning")  # the report is what goes to stdout
    with scratch_folder("bench-twins") as folder:
        figures = [
            await measure(folder, names, rate, kills) for names in (("r1", "r2"), ("alone",))
        ]
    columns = Figure.__slots__
    print("".join(f"{name:>12}" for name in columns))
    for figure in figures:
        print("".join(f"{getattr(figure, name):>12,}" for name in columns))
    print("targets of two replicas: lost 0, doubled 0, longest < 1000 ms")
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=1_000, help="changes per second")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.rate, given.kills, as_json=given.json))
