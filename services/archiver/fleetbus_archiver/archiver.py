"""The loop of the archiver: wait until a chunk is due, collect it, store it, acknowledge it.

Nothing is acknowledged before it is stored, and how far the stream is archived is read from the
archive: so after a crash at any step what was not stored comes again, and what was stored and not
acknowledged is recognized by its sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from fleetbus.archive.chunk import write_chunk
from fleetbus.archive.names import ChunkName, read_name
from fleetbus.archive.store import ArchiveStore
from fleetbus.bus.connection import Bus
from fleetbus.errors import ArchiveError, BusError
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus_archiver import metrics
from fleetbus_archiver.collecting import MOST_EVENTS, Collector, Round, StreamRolledBack
from fleetbus_archiver.position import Position, read_position
from fleetbus_archiver.pulling import Puller
from fleetbus_archiver.segments import Segment, divide, times_of
from fleetbus_archiver.stream_state import DurableState, StreamState, read_durable, read_stream

log = structlog.get_logger()

_TYPICAL_LINE: Final = 2048
"""Bytes of a line, until some were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pauses of the archiver."""

    poll: timedelta = timedelta(seconds=1)
    """Between two looks at the stream while nothing is due."""
    first_retry: timedelta = timedelta(milliseconds=500)
    """After a failure; it doubles."""
    last_retry: timedelta = timedelta(seconds=15)


USUAL: Final = Pace()


class Archiver:
    """Archives the stream, chunk by chunk.

    Args:
        bus: a connection.
        puller: of the durable.
        store: the archive.
        chunk_bytes: a chunk is due when so many bytes of lines wait …
        chunk_age: … or when the last one is so old.
        beat: called while it makes progress, or tries again.
        pace: its pauses.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        puller: Puller,
        store: ArchiveStore,
        chunk_bytes: int,
        chunk_age: timedelta,
        beat: Callable[[], None],
        pace: Pace = USUAL,
    ) -> None:
        self._bus = bus
        self._puller = puller
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._chunk_age = chunk_age
        self._beat = beat
        self._pace = pace
        self._collector = Collector(bus=bus, puller=puller, most_bytes=chunk_bytes, beat=beat)
        self._position: Position | None = None
        # The server's time when this process first saw the stream.
        self._began: datetime | None = None
        self._line_bytes = float(_TYPICAL_LINE)
        self._trouble = "nothing was read yet"
        self._log_once = LogOnce()

    def trouble(self) -> str:
        """Why it does not get on; empty while it does."""
        return self._trouble

    def newest(self) -> datetime | None:
        """The end of the newest chunk; None if there is none, or it is unknown."""
        return self._position.end if self._position is not None else None

    async def run(self) -> None:
        """Archive until cancelled."""
        pauses = Pauses(self._pace.first_retry, self._pace.last_retry)
        while True:
            self._beat()
            try:
                is_behind = await self._turn()
            except (BusError, ArchiveError) as e:
                self._note("store" if isinstance(e, ArchiveError) else "read", e)
                await self._measure_again()
                await pauses.sleep()
                continue
            self._trouble = ""
            pauses.reset()
            if not is_behind:
                await asyncio.sleep(self._pace.poll.total_seconds())

    async def _turn(self) -> bool:
        """Store what is due; returns whether more is due at once."""
        stream = await read_stream(self._bus)
        durable = await read_durable(self._bus)
        position = await self._located(stream, durable)
        self._measure(stream, durable, position)
        if not durable.pending and not durable.unacked:
            position.delivered = max(position.delivered, stream.last)
        if not self._is_due(stream, durable, position):
            return False
        try:
            new_round = await self._collector.collect(position)
        except StreamRolledBack as e:
            self._begin_generation(position, e.sequence - 1)
            return True
        await self._store_round(new_round, position)
        return not new_round.is_drained

    async def _located(self, stream: StreamState, durable: DurableState) -> Position:
        """Return the position up to which this stream is archived."""
        position = self._position
        if position is None or position.created != stream.created:
            position = await self._read_position(stream)
        elif durable.floor > position.archived:
            # Another archiver has stored something, while this one was cut off.
            position = await self._read_position(stream)
        if stream.last < position.archived > (await read_stream(self._bus)).last:
            self._begin_generation(position, min(durable.floor, stream.last))
        elif durable.floor > position.archived:
            # What was acknowledged is not in this archive: it is another one, or was emptied.
            self._note_lost(position.skip(durable.floor), position)
        return position

    async def _read_position(self, stream: StreamState) -> Position:
        self._position = None
        position = await read_position(self._store, stream.created)
        if position.latest is None and position.is_first:
            # What the stream dropped before there was an archive is not lost.
            position.skip(stream.first - 1)
        self._position = position
        log.info("archive_position", stream=position.stream, sequence=position.archived)
        return position

    def _note_lost(self, messages: int, position: Position) -> None:
        if messages:
            metrics.LOST.inc(messages)
            log.error("archive_gap", messages=messages, stream=position.stream)

    def _begin_generation(self, position: Position, sequence: int) -> None:
        """Begin anew, as for another stream: numbers are used twice."""
        position.generation += 1
        position.archived = position.delivered = sequence
        position.end = position.latest = None
        position.is_first = False
        log.error("stream_rolled_back", stream=position.stream, sequence=sequence)

    def _is_due(self, stream: StreamState, durable: DurableState, position: Position) -> bool:
        if position.end is None or stream.now - position.end >= self._chunk_age:
            return True
        if position.end - stream.now > self._chunk_age:
            return True  # the server's clock was set back
        waiting = durable.pending
        return waiting >= MOST_EVENTS or waiting * self._line_bytes >= self._chunk_bytes

    async def _store_round(self, new_round: Round, position: Position) -> None:
        last = new_round.messages[-1].sequence if new_round.messages else 0
        until = max(last, position.delivered, new_round.before.last if new_round.is_drained else 0)
        division = divide(
            new_round.messages,
            archived=position.archived,
            delivered=position.delivered,
            until=until,
            stream_first=new_round.after.first,
        )
        self._note_lost(division.lost, position)
        await self._puller.ack(new_round.done)
        segments = division.segments
        if not segments and new_round.is_drained:
            # Nothing was stored at all: the chunk says so, for the time that has passed.
            segments = [Segment(position.archived + 1, position.archived)]
        for segment in segments:
            covered = (
                new_round.before.now if new_round.is_drained and segment.last == until else None
            )
            await self._store_segment(segment, position, covered)

    async def _store_segment(
        self, segment: Segment, position: Position, covered: datetime | None
    ) -> None:
        """Store a chunk and acknowledge its messages.

        Args:
            segment: what is in it.
            position: moved behind it.
            covered: until when it covers the stream, if that is known.
        """
        lines = [message.line for message in segment.messages if message.line is not None]
        start, end = times_of(segment, position, covered)
        name = ChunkName(position.stream, start, end, segment.first, segment.last)
        data = await asyncio.to_thread(write_chunk, lines)
        await self._put(name.path, data)
        stored = read_name(name.path)
        position.advance(stored or name)
        self._count(segment, sum(len(line.text) + 1 for line in lines), len(data))
        await self._puller.ack(message.reply for message in segment.messages)

    async def _put(self, path: str, data: bytes) -> None:
        """Store a chunk, however long that takes: its messages wait without an acknowledgement."""
        pauses = Pauses(self._pace.first_retry, self._pace.last_retry)
        while True:
            self._beat()
            try:
                await self._store.put(path, data)
            except ArchiveError as e:
                self._note("store", e)
                await self._measure_again()
                await pauses.sleep()
            else:
                self._trouble = ""
                return

    def _note(self, step: str, error: Exception) -> None:
        self._trouble = str(error)
        metrics.ERRORS.labels(step).inc()
        if self._log_once.should_log(str(error)):
            log.warning("archiving_failed", step=step, error=str(error))

    def _count(self, segment: Segment, size: int, stored: int) -> None:
        events = sum(message.line is not None for message in segment.messages)
        metrics.EVENTS.inc(events)
        metrics.REJECTED.inc(len(segment.messages) - events)
        metrics.BYTES.labels("lines").inc(size)
        metrics.BYTES.labels("stored").inc(stored)
        metrics.CHUNKS.inc()
        metrics.LAST_CHUNK.set_to_current_time()
        if events:
            self._line_bytes = size / events

    async def _measure_again(self) -> None:
        """Measure how far it is behind while the store is away."""
        try:
            stream, durable = await read_stream(self._bus), await read_durable(self._bus)
        except BusError:
            return  # the next turn says so
        self._measure(stream, durable, self._position)

    def _measure(
        self, stream: StreamState, durable: DurableState, position: Position | None
    ) -> None:
        self._began = self._began or stream.now
        waiting = durable.pending + durable.unacked
        metrics.LAG_MESSAGES.set(waiting)
        since = (position.end if position is not None else None) or self._began
        seconds = (stream.now - since).total_seconds() if waiting else 0.0
        metrics.LAG_SECONDS.set(max(0.0, seconds))
