"""Collects the messages of one round: what the durable has, up to the size of a chunk, in order.

A round is only complete once all that the durable has delivered to anybody is in it. What a killed
process held is delivered again when its time is over, before newer messages: so chunks follow each
other without a gap, whenever somebody was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.archive.chunk import Line
from fleetbus.archive.filter import key_of
from fleetbus.archive.lines import from_nanoseconds, to_archive_line
from fleetbus.bus.connection import Bus
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus_archiver.position import Position
from fleetbus_archiver.pulling import Pulled, Puller
from fleetbus_archiver.segments import PendingMessage
from fleetbus_archiver.stream_state import StreamState, read_durable, read_stream
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Event

MOST_EVENTS: Final = 50_000
"""In a round: half of what the durable delivers without an acknowledgement."""
_CHECK_EVERY: Final = timedelta(milliseconds=200)
_PATIENCE: Final = 3
"""Number of acknowledgement timeouts before a round is given up."""


class StreamRolledBack(BusError):
    """The stream has used numbers again that are archived already: its server lost its end."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"the stream has another message {sequence} than the archived one")
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Round:
    """The messages of one round, and the stream around it."""

    messages: list[PendingMessage]
    """Sorted by sequence."""
    done: list[str]
    """Where to acknowledge messages that are archived already."""
    before: StreamState
    """The stream before the round."""
    after: StreamState
    is_drained: bool
    """Nothing was left of what the stream had before the round."""


class Collector:
    """Collects rounds.

    Args:
        bus: a connection.
        puller: of the durable.
        most_bytes: of lines in a round; the last batch may go beyond it.
        beat: called while it gets on.
    """

    def __init__(
        self, *, bus: Bus, puller: Puller, most_bytes: int, beat: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._puller = puller
        self._most_bytes = most_bytes
        self._beat = beat
        # Of the running round, by sequence.
        self._held: dict[int, PendingMessage] = {}
        self._done: dict[int, str] = {}
        self._size = 0

    async def collect(self, position: Position) -> Round:
        """Collect a round that follows a position.

        Raises:
            StreamRolledBack: see there.
            BusError: not complete; everything is delivered again.
        """
        self._held, self._done, self._size = {}, {}, 0
        await self._wait_for_others()
        before = await read_stream(self._bus)
        is_drained = await self._pull_all(position)
        after = await read_stream(self._bus)
        if after.created != before.created:
            raise BusError("the stream was replaced meanwhile")
        messages = [message for _, message in sorted(self._held.items())]
        self._held = {}
        return Round(messages, list(self._done.values()), before, after, is_drained)

    async def _wait_for_others(self) -> None:
        """Wait until what others hold was acknowledged, or is delivered again."""
        began = time.monotonic()
        while (durable := await read_durable(self._bus)).unacked:
            if time.monotonic() - began > durable.ack_wait.total_seconds():
                return
            self._beat()
            await asyncio.sleep(_CHECK_EVERY.total_seconds())

    async def _pull_all(self, position: Position) -> bool:
        """Pull until the round is complete; returns whether nothing was left."""
        began = time.monotonic()
        while True:
            batch = await self._puller.pull()
            for message in batch.messages:
                self._take(message, position)
            self._beat()
            is_full = self._size >= self._most_bytes or len(self._held) >= MOST_EVENTS
            if batch.messages and not batch.is_drained and not is_full:
                continue
            durable = await read_durable(self._bus)
            if self._held and durable.floor >= min(self._held):
                # Then counting does not tell whether all that was delivered is here.
                raise BusError("another archiver acknowledges the same messages")
            if durable.unacked <= len(self._held) + len(self._done):
                if is_full or batch.is_drained:
                    return batch.is_drained
            elif time.monotonic() - began > _PATIENCE * durable.ack_wait.total_seconds():
                raise BusError(f"{durable.unacked} messages are held by another archiver")
            else:
                await self._ack_done()
                await asyncio.sleep(_CHECK_EVERY.total_seconds())

    async def _ack_done(self) -> None:
        done, self._done = list(self._done.values()), {}
        await self._puller.ack(done)

    def _take(self, pulled: Pulled, position: Position) -> None:
        message, sequence = pulled.message, pulled.sequence
        stored_at = from_nanoseconds(pulled.stored_ns)
        if sequence <= position.archived:
            if position.latest is not None and stored_at > position.latest:
                raise StreamRolledBack(sequence)
            self._done[sequence] = message.reply
            return
        line = _line(pulled)
        if sequence not in self._held and line is not None:
            self._size += len(line.text) + 1
        self._held[sequence] = PendingMessage(sequence, stored_at, message.reply, line)


def _line(pulled: Pulled) -> Line | None:
    message, sequence = pulled.message, pulled.sequence
    try:
        event = admit(message.subject, message.headers or {}, message.data, now_ms=now_ms())
    except MalformedMessage:
        return None  # the projector records it, and requests a list (rule B18)
    if not isinstance(event, Event):
        return None
    stored_at = from_nanoseconds(pulled.stored_ns)
    return Line(key_of(event), sequence, to_archive_line(event, sequence, stored_at))
