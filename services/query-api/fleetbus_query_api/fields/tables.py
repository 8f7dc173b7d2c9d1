"""Keeps the columns that were asked for, within a byte bound, and up to date by the feed."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from prometheus_client import Gauge

from fleetbus.kube.field_paths import FieldPath
from fleetbus.snapshot import SnapshotReader
from fleetbus.snapshot.reads.rows import MOST_ROWS, StoredRow
from fleetbus.snapshot.reads.walk import EVERYTHING
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.fields.column import FieldColumn
from fleetbus_query_api.fields.table import FieldTable, Place
from fleetbus_query_api.limits.time_slices import TimeSlices

CHUNK_BYTES: Final = 512 * 1024
"""Bodies per read: the answers to others wait on the same connection."""
FIRST_ROWS: Final = 50
"""Rows of the first read, before their sizes are known."""
_AT_A_TIME: Final = 4
"""Tables that one question reads side by side."""
_ATTEMPTS: Final = 3
"""Changes may be missed while a table is read, as when the store is lost; then it is read again."""
SIZE: Final = Gauge(
    "fleetbus_query_api_columns_bytes",
    "Bytes of memory, about, that the values of fields take which lists were selected, sorted or"
    " counted by.",
)
_NOT_AGAIN_FOR: Final = timedelta(minutes=1)
"""Time for which a table that did not fit is not tried again: each attempt reads all bodies."""


class SharedTask:
    """Runs a coroutine for everybody who waits for it.

    Args:
        work: the coroutine.
        on_end: called once, when it has ended or is given up.
        name: of the task.
    """

    def __init__(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[], None], *, name: str
    ) -> None:
        self._on_end = on_end
        self._waiting = 0
        self._has_ended = False
        self._task = asyncio.create_task(work, name=name)
        self._task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Wait for the end; raises what the work raises.

        Whoever is cancelled gives up only for itself; the last one cancels the work.
        """
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._end()
                self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # those who wait raise it
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end()


class _TooLarge(Exception):
    """There is no room left, and everything else is in use."""


class FieldTables:
    """The tables that questions share.

    Args:
        reader: the snapshot.
        tail: tells what has changed.
        slices: run the decoding.
        most_bytes: of all tables together, about; the least recently used columns go.
    """

    def __init__(
        self, *, reader: SnapshotReader, tail: FeedTail, slices: TimeSlices, most_bytes: int
    ) -> None:
        self._reader = reader
        self._tail = tail
        self._slices = slices
        self._most_bytes = most_bytes
        self._tables: dict[Place, FieldTable] = {}
        self._loads: dict[FieldTable, SharedTask] = {}
        self._reads: dict[tuple[FieldTable, FieldPath], SharedTask] = {}
        self._used: dict[tuple[Place, FieldPath | None], None] = {}
        """In the order of use, the most recent one last; None is for the rows alone."""
        self._refused: dict[Place, float] = {}
        self.size = 0

    def has(self, places: Iterable[Place], paths: Collection[FieldPath]) -> bool:
        """Whether columns of all places were read before."""
        return all(
            (table := self._tables.get(place)) is not None and table.has(paths) for place in places
        )

    async def catch_up(self) -> int:
        """Note all changes before this call; returns the version of the snapshot up to there.

        Raises:
            StoreError: the store was emptied.
            redis.exceptions.RedisError: the store does not answer.
        """
        return (await self._tail.catch_up()).version

    @asynccontextmanager
    async def open(
        self, places: Sequence[Place], paths: Collection[FieldPath]
    ) -> AsyncGenerator[Mapping[Place, FieldTable]]:
        """Read what is missing, after `catch_up`, and keep it meanwhile.

        Yields:
            The tables with these columns, not older than the last `catch_up`; without those for
            which there is no room. Each may only be used under its lock.

        Raises:
            redis.exceptions.RedisError: the store does not answer.
        """
        tables: dict[Place, FieldTable] = {}
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def acquire(place: Place) -> None:
            async with turns:
                table = await self._acquire(place, paths)
            if table is not None:
                tables[place] = table

        try:
            for place in places:
                if (table := self._ready(place, paths)) is not None:
                    table.pin(paths)
                    tables[place] = table
            await _all(acquire(place) for place in places if place not in tables)
            yield tables
        finally:
            for table in tables.values():
                table.pin(paths, -1)

    def _ready(self, place: Place, paths: Collection[FieldPath]) -> FieldTable | None:
        """The table, if nothing is to be read."""
        table = self._tables.get(place)
        if table is None or table.dirty or not table.has(paths):
            return None
        self._note_use(table, paths)
        return table

    # --- reading ----------------------------------------------------------------------------------

    async def _acquire(self, place: Place, paths: Collection[FieldPath]) -> FieldTable | None:
        """A table with these columns, pinned; None if it does not fit."""
        if self._refused.get(place, 0) > time.monotonic():
            return None
        for _ in range(_ATTEMPTS):
            table = self._tables.get(place) or self._start(place)
            table.pin(paths)
            try:
                await self._read_missing(table, paths)
                await self._refresh(table)
            except _TooLarge:
                table.pin(paths, -1)
                self._refused[place] = time.monotonic() + _NOT_AGAIN_FOR.total_seconds()
                return None
            except BaseException:
                table.pin(paths, -1)
                raise
            if not table.is_void:
                self._note_use(table, paths)
                return table
            table.pin(paths, -1)
        return None

    def _start(self, place: Place) -> FieldTable:
        table = FieldTable(place)
        stop = self._tail.listen(*place, table)

        def end() -> None:
            stop()
            if self._tables.get(place) is table:
                del self._tables[place]
            self.size -= table.measured
            table.measured = 0
            SIZE.set(self.size)

        table.end = end
        self._tables[place] = table
        return table

    async def _read_missing(self, table: FieldTable, paths: Collection[FieldPath]) -> None:
        if not table.is_loaded:
            if table not in self._loads:
                self._loads[table] = SharedTask(
                    self._load(table), lambda: self._end_load(table), name="field-keys"
                )
            await self._loads[table].wait()
        missing = [path for path in paths if not table.has([path])]
        if new := [path for path in missing if (table, path) not in self._reads]:
            columns = {path: FieldColumn(len(table.keys)) for path in new}
            table.columns |= columns
            work = SharedTask(
                self._read_columns(table, columns),
                lambda: self._end_read(table, columns),
                name="field-columns",
            )
            self._reads |= {(table, path): work for path in new}
        for path in missing:
            if (work := self._reads.get((table, path))) is not None:
                await work.wait()

    async def _load(self, table: FieldTable) -> None:
        async for keys in self._reader.rows.walk(*table.place, EVERYTHING):
            table.fill(keys)
            self._grow(table)
        table.is_loaded = True

    def _end_load(self, table: FieldTable) -> None:
        del self._loads[table]
        if not table.is_loaded:
            table.lost("its rows were not read")

    async def _read_columns(
        self, table: FieldTable, columns: Mapping[FieldPath, FieldColumn]
    ) -> None:
        async with aclosing(self._chunks(table)) as chunks:
            async for rows in chunks:
                async with table.lock:
                    await self._slices.run(lambda row: table.put(row, columns), rows)
                self._grow(table)
        for column in columns.values():
            column.is_read = True

    def _end_read(self, table: FieldTable, columns: Mapping[FieldPath, FieldColumn]) -> None:
        for path, column in columns.items():
            del self._reads[table, path]
            if not column.is_read and table.columns.get(path) is column:
                del table.columns[path]
        with suppress(_TooLarge):
            self._grow(table)

    async def _chunks(self, table: FieldTable) -> AsyncGenerator[list[StoredRow]]:
        """Read all rows in order; the next ones are on their way while some are decoded."""
        count = FIRST_ROWS
        reading = self._read_after(table, b"", count)
        try:
            while reading is not None:
                rows = await reading
                count = min(MOST_ROWS, 2 * len(rows))
                reading = self._read_after(table, rows[-1].key, count)
                yield rows
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])

    def _read_after(
        self, table: FieldTable, key: bytes, count: int
    ) -> asyncio.Task[list[StoredRow]] | None:
        start = bisect_right(table.keys, key)
        members = table.keys[start : start + count]
        if not members:
            return None
        return asyncio.create_task(
            self._reader.rows.read(*table.place, members, most_bytes=CHUNK_BYTES),
            name="field-rows",
        )

    async def _refresh(self, table: FieldTable) -> None:
        """Read the rows that have changed."""
        if not table.dirty or table.is_void:
            return
        async with table.lock:
            versions = dict(table.dirty)
            remaining = list(versions)
            while remaining and not table.is_void:
                rows = await self._reader.rows.read(*table.place, remaining, most_bytes=CHUNK_BYTES)
                await self._slices.run(table.put, rows)
                for row in rows:
                    table.settle(row.key, versions[row.key])
                remaining = remaining[len(rows) :]
        self._grow(table)

    # --- room -------------------------------------------------------------------------------------

    def _note_use(self, table: FieldTable, paths: Collection[FieldPath]) -> None:
        for path in (*paths, None):
            self._used.pop((table.place, path), None)
            self._used[table.place, path] = None

    def _grow(self, table: FieldTable) -> None:
        """Count what a table takes now, and make room.

        Raises:
            _TooLarge: there is none.
        """
        if table.is_void:
            return
        self._measure(table)
        if self.size > self._most_bytes:
            self._evict()
        if self.size > self._most_bytes:
            raise _TooLarge

    def _measure(self, table: FieldTable) -> None:
        size = table.size
        self.size += size - table.measured
        table.measured = size
        SIZE.set(self.size)

    def _evict(self) -> None:
        for place, path in tuple(self._used):
            if self.size <= self._most_bytes:
                return
            table = self._tables.get(place)
            if table is None:
                del self._used[place, path]
            elif not table.pins[path]:
                if path is not None:
                    table.columns.pop(path, None)
                    del self._used[place, path]
                    self._measure(table)
                if not table.columns and not table.pins[None]:
                    table.lost("there is no room")


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it; the first error ends the rest."""
    tasks = [asyncio.create_task(coroutine, name="field-table") for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        raise
