"""Watches of the query API: how late an event is, what it costs, and what a restart loses.

    python tests/run.py bench.watchers [--json]

A real Valkey is filled by the product's writer, the query API is one process, and the watchers are
connections of this process to `/kube/-`, all for the same pods, as whole objects of 5 to 8 KB. The
writer changes one pod after another; an annotation has the time. Then the query API is killed and
started again while the writer goes on: each watcher resumes from its last version, and at the end
every one must have seen the last change of every pod that was changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.rig.command import run_command
from bench.rig.pod_changes import PodChanges
from bench.rig.processes import cpu_seconds, rss_mb
from bench.rig.query_fleet import PODS, SeededStore, query_api, seeded
from fleetbus_emulator.scratch import scratch_folder
from support.eventually import eventually

_MARK: Final = re.compile(rb'"bench":"(\d+) (\d+) ([\d.]+)"')
"""Index of the pod, number of the change, time."""
_VERSION: Final = re.compile(rb'"resourceVersion":"(\d+)"')
_SETTLE: Final = 1.0
_RETRY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    pods: int = 10_000
    clusters: int = 10
    watchers: int = 100
    rate: int = 200
    """PodChanges per second."""
    seconds: float = 20.0
    down: float = 2.0
    """Seconds without a query API."""


TINY = Sizes(pods=50, clusters=2, watchers=3, rate=50, seconds=0.5, down=0.2)


@dataclass
class Watcher:
    """One connection that resumes from where it ended."""

    version: str
    """Where it began."""
    last: bytes = b""
    """The last events that it has got; only who resumes looks for their version."""
    seen: dict[int, int] = field(default_factory=dict[int, int])
    delays: list[float] = field(default_factory=list[float])
    relists: int = 0
    is_open: bool = False

    async def run(self, address: list[str]) -> None:
        """Watch, and go on at what is in `address` by then, until cancelled."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._watch(address[0])
            self.is_open = False
            await asyncio.sleep(_RETRY)

    async def _watch(self, url: str) -> None:
        at = urlsplit(url)
        if self.last:
            self.version = _VERSION.findall(self.last)[-1].decode()
        reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=2**20)
        path = f"/kube/-/api/v1/pods?watch=1&resourceVersion={self.version}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\n\r\n".encode())
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.is_open = True
            while size := int(await reader.readline() or b"0", 16):
                self._take(await reader.readexactly(size), time.time())
                await reader.readexactly(2)
        finally:
            writer.close()

    def _take(self, chunk: bytes, now: float) -> None:
        """Take whole events: a chunk is never part of one."""
        if b'{"type":"ERROR"' in chunk:
            self.relists += 1
            return
        for index, number, written in _MARK.findall(chunk):
            self.seen[int(index)] = int(number)
            self.delays.append(now - float(written))
        self.last = chunk


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench") as folder:
        async with seeded(folder / "store", pods=sizes.pods, clusters=sizes.clusters) as store:
            return await _measure(folder, store, sizes)


async def _measure(folder: Path, store: SeededStore, sizes: Sizes) -> dict[str, Any]:
    version = str(await store.reader.version())
    watchers = [Watcher(version) for _ in range(sizes.watchers)]
    address = [""]
    changes = PodChanges(store, pods=sizes.pods, clusters=sizes.clusters, rate=sizes.rate)
    many = str(sizes.watchers)
    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as first:
        api = await first.enter_async_context(query_api(folder, store.url, USER_WATCHES=many))
        address[0] = api.url
        tasks += [asyncio.create_task(watcher.run(address)) for watcher in watchers]
        try:
            await eventually(lambda: all(watcher.is_open for watcher in watchers))
            cpu, own_cpu = cpu_seconds(api.pid), time.process_time()
            await changes.run(sizes.seconds)
            await eventually(lambda: _are_through(watchers, changes))
            spent = (cpu_seconds(api.pid) - cpu, time.process_time() - own_cpu)
            figures = _figures(watchers, *spent, rss_mb(api.pid))
        except BaseException:
            await _cancel(tasks)
            raise
    try:
        figures["restart"] = await _restart(folder, store, sizes, changes, watchers, address)
    finally:
        await _cancel(tasks)
    return {"watchers": sizes.watchers, "rate": sizes.rate, "resource": PODS, **figures}


async def _restart(
    folder: Path,
    store: SeededStore,
    sizes: Sizes,
    changes: PodChanges,
    watchers: Sequence[Watcher],
    address: list[str],
) -> dict[str, Any]:
    """Go on without an API for a while, then with another one."""
    await changes.run(sizes.down)
    many = str(sizes.watchers)
    async with query_api(folder, store.url, USER_WATCHES=many) as api:
        address[0] = api.url
        began = time.perf_counter()
        await changes.run(_SETTLE)
        await eventually(lambda: all(watcher.is_open for watcher in watchers))
        await eventually(lambda: _are_through(watchers, changes))
        return {
            "caught_up_s": round(time.perf_counter() - began - _SETTLE, 2),
            "lost": sum(watcher.seen != changes.last for watcher in watchers),
            "relists": sum(watcher.relists for watcher in watchers),
        }


def _are_through(watchers: Sequence[Watcher], changes: PodChanges) -> bool:
    return all(watcher.seen == changes.last for watcher in watchers)


def _figures(
    watchers: Sequence[Watcher], cpu: float, client_cpu: float, rss: float
) -> dict[str, Any]:
    delays = sorted(delay for watcher in watchers for delay in watcher.delays)
    return {
        "deliveries": len(delays),
        "p50_ms": round(statistics.median(delays) * 1e3, 1),
        "p99_ms": round(delays[int(len(delays) * 0.99)] * 1e3, 1),
        "worst_ms": round(delays[-1] * 1e3, 1),
        "cpu_us_per_delivery": round(cpu / len(delays) * 1e6, 1),
        "client_cpu_us_per_delivery": round(client_cpu / len(delays) * 1e6, 1),
        "load": round(os.getloadavg()[0], 1),
        "rss_mb": round(rss),
    }


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def show(figures: dict[str, Any]) -> None:
    restart = figures["restart"]
    print(f"{figures['watchers']} watchers, {figures['rate']} changes a second:")
    print(
        f"  {figures['deliveries']:,} deliveries, delay p50 {figures['p50_ms']} ms,"
        f" p99 {figures['p99_ms']} ms (<= 250), worst {figures['worst_ms']} ms"
    )
    print(
        f"  CPU for each: API {figures['cpu_us_per_delivery']} µs, watchers and writer"
        f" {figures['client_cpu_us_per_delivery']} µs; API {figures['rss_mb']} MB at the end;"
        f" load {figures['load']}"
    )
    print(
        f"  after a restart of the API: {restart['lost']} watchers lack something (0),"
        f" {restart['relists']} had to list again (0); all had caught up after"
        f" {restart['caught_up_s']} s"
    )


if __name__ == "__main__":
    run_command(measure, show, TINY)
