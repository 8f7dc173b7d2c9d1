"""Frees what deletions leave behind, also in a store that is full (rule P3).

A tombstone goes as soon as a complete list or a clean audit has passed it. The last state of a
deleted object is kept for a while only, and not at all while the store has no room.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from typing import Final, NoReturn

import structlog
from prometheus_client import Counter
from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

_TICK: Final = timedelta(seconds=1)
_INTERVAL: Final = timedelta(minutes=1)
_INTERVAL_WHEN_FULL: Final = timedelta(seconds=5)

FREED: Final = Counter(
    "fleetbus_tombstones_freed",
    "Tombstones that left the snapshot, because a list or a clean audit had passed them.",
)


class TombstoneCollector:
    """Frees tombstones that no late event needs any more.

    Args:
        reader: the snapshot.
        writer: the snapshot.
        kept: how long the last state of a deleted object is kept.
    """

    def __init__(self, *, reader: SnapshotReader, writer: SnapshotWriter, kept: timedelta) -> None:
        self._reader = reader
        self._writer = writer
        self._kept = kept
        self._risen: set[tuple[str, str]] = set()
        self._noted = asyncio.Event()
        self._checked_at = float("-inf")
        self._were_full: AbstractSet[int] = frozenset()
        self._log_once = LogOnce()

    def note_risen_floor(self, cluster: str, resource: str) -> None:
        """Collect the tombstones of this resource soon: its floor has risen."""
        self._risen.add((cluster, resource))
        self._noted.set()

    async def run(self) -> NoReturn:
        """Free what can be freed, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK.total_seconds()):
                    await self._noted.wait()
            self._noted.clear()
            try:
                await self._turn()
            except (RedisError, StoreError, OSError) as e:  # the store is away: try again
                if self._log_once.should_log(str(e)):
                    log.warning("tombstones_not_freed", error=str(e))
                await asyncio.sleep(_TICK.total_seconds())

    async def _turn(self) -> None:
        full = await self._full_shards()
        if full - self._were_full:
            log.error(
                "store_full",
                hint="the store has used up its maxmemory: messages wait on the bus until it has"
                " room; the last states of deleted objects are dropped now",
            )
            self._checked_at = float("-inf")
        self._were_full = full
        interval = _INTERVAL_WHEN_FULL if full else _INTERVAL
        if time.monotonic() - self._checked_at >= interval.total_seconds():
            await self._collect_all(full)
            self._checked_at = time.monotonic()
            return
        while self._risen:
            cluster, resource = self._risen.pop()
            await self._collect(cluster, resource)

    async def _full_shards(self) -> set[int]:
        full: set[int] = set()
        for shard in range(self._writer.keys.shards):
            try:
                if await self._writer.is_full(shard):
                    full.add(shard)
            except RedisError:
                if self._writer.keys.shards == 1:
                    raise  # else the other shards are looked after
        return full

    async def _collect_all(self, full: AbstractSet[int]) -> None:
        self._risen.clear()

        async def collect(record: ClusterRecord) -> None:
            is_full = self._writer.keys.shard_of(record.name) in full
            kept = timedelta() if is_full else self._kept
            for resource in await self._writer.removal.find_tombstones(record.name):
                await self._writer.removal.drop_last_states(record.name, resource, kept=kept)
                await self._collect(record.name, resource)

        await for_each((await self._reader.available_clusters()).records, collect)

    async def _collect(self, cluster: str, resource: str) -> None:
        FREED.inc(await self._writer.removal.collect_tombstones(cluster, resource))
