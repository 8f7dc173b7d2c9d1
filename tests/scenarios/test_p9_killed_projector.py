"""Two projectors share the clusters: one is killed under load, the other goes on (rules P9, B7).

What the killed one had received and not handled comes to the other within the lease of a request,
15 s, and sooner if a controller waits for it; what comes later is not delayed. With real processes,
so it is part of `make scenarios` only.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus.workqueue import QueuePolicy
from support.eventually import eventually
from support.hostile.careless_copies import KEY, OBJECTS
from support.rigs.copies import WITHIN, Copies, copies_rig

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
]


class Lags:
    """Time that each change takes from the API server to the snapshot."""

    def __init__(self, copies: Copies, reader: SnapshotReader) -> None:
        self._copies = copies
        self._reader = reader
        self._open: dict[str, tuple[int, float]] = {}
        self.seconds: list[tuple[float, float]] = []
        """When it was made, and how long it took."""

    async def run(self) -> None:
        """Make 100 changes a second, and look for them."""
        number = 0
        while True:
            name = f"m{number % OBJECTS}"
            number += 1
            if name not in self._open:
                self._copies.load.write(name)
                config_map = self._copies.clusters["a"].get("v1/configmaps", "default", name)
                assert config_map is not None
                self._open[name] = (
                    int(config_map["metadata"]["resourceVersion"]),
                    time.monotonic(),
                )
            await self._look()
            await asyncio.sleep(0.01)  # the pace of the load

    async def _look(self) -> None:
        names = [("default", name) for name in self._open]
        versions = await self._reader.versions("a", KEY, names)
        for (_, name), entry in versions.items():
            version, written = self._open[name]
            if int(entry.resource_version) >= version:
                self.seconds.append((written, time.monotonic() - written))
                del self._open[name]

    def longest(self, since: float, until: float = float("inf")) -> float:
        waiting = [time.monotonic() - written for _, written in self._open.values()]
        over = [took for written, took in self.seconds if since <= written < until]
        return max([*over, *waiting])


async def test_p9_of_two_projectors_one_is_killed_and_the_other_goes_on_within_a_lease(
    tmp_path: Path, nats_url: str, valkey_url: str
) -> None:
    async with copies_rig(tmp_path, nats_url, valkey_url, projectors=2) as copies:
        redis = await connect(valkey_url)
        lags = Lags(copies, SnapshotReader(redis, copies.keys))
        running = asyncio.create_task(lags.run())
        try:
            for _ in range(3):
                await asyncio.sleep(3)  # under load
                killed = time.monotonic()
                copies.services[0].kill()
                await asyncio.sleep(12)  # longer than a lease
                assert not running.done(), running.exception()
                longest = lags.longest(killed - 1)
                assert longest < QueuePolicy().lease.total_seconds()
                copies.services[0].respawn()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await redis.aclose()
        await eventually(copies.is_in_step, WITHIN)
