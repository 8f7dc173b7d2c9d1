"""Reads the messages of a subject from the stream, from a point in time on.

The consumer is ephemeral and lives in the server's memory: a restarted server has forgotten it,
and the pending pull with it. Then another consumer continues after the last message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.bus.refusals import Refused
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms, rfc3339
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM

_SECOND_NS: Final = 1_000_000_000
_INACTIVE_SECONDS: Final = 60
_EXPIRES_SECONDS: Final = 30
_ANSWER_SECONDS: Final = _EXPIRES_SECONDS + 5
RECONNECT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5
_BATCH: Final = 200
_NOTHING: Final = "404"
_EXPIRED: Final = "408"


async def read_events(
    bus: Bus, *, subject: str, start: datetime
) -> AsyncGenerator[tuple[Event, Msg.Metadata]]:
    """Yield the events of a subject since a point in time; invalid messages are skipped.

    Raises:
        BusError: there is no stream, or NATS did not come back in time.
    """
    history = History(bus, subject=subject, start=start, follow=False)
    await history.open()
    try:
        while (message := await history.next()) is not None:
            if (event := _event_of(message)) is not None:
                yield event, message.metadata
    finally:
        await history.aclose()


def _event_of(message: Msg) -> Event | None:
    with suppress(MalformedMessage):
        event = admit(message.subject, message.headers, message.data, now_ms=now_ms())
        return event if isinstance(event, Event) else None
    return None


class History:
    """Pulls the messages in batches.

    Args:
        bus: a connection.
        subject: the filter subject.
        start: the time of the first message.
        follow: wait for more messages at the end.
        stream: where they are stored.
    """

    def __init__(
        self, bus: Bus, *, subject: str, start: datetime, follow: bool, stream: str = STREAM
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._filter = subject
        self._start = start
        self._follow = follow
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._inbox = ""
        self._consumer = ""
        # What the current pull may still deliver; 0 without one. The server reports the end of a
        # batch only if the batch is not full: after a full one, nothing comes unless we pull again.
        self._outstanding = 0
        # Time and sequence of the last message: a new consumer starts at that time and repeats it.
        self._last = (datetime.min.replace(tzinfo=UTC), 0)
        bus.on_reconnect(lambda: self._arrived.put_nowait(None))

    async def open(self) -> None:
        """Create the consumer.

        Raises:
            BusError: there is no stream, or NATS does not answer.
        """
        self._inbox = self._bus.nc.new_inbox()
        await self._bus.nc.subscribe(self._inbox, cb=self._arrived.put)
        await self._create()

    async def next(self) -> Msg | None:
        """Return the next message; None at the end, unless it follows.

        Raises:
            BusError: NATS did not come back in time, and it does not follow.
            Refused: we have no right to read.
        """
        while True:
            if not self._outstanding:
                await self._pull()
            message = await self._take()
            status = (message.headers or {}).get("Status") if message is not None else ""
            if message is not None and status is None:
                self._outstanding -= 1
                if self._is_new(message):
                    return message
                continue
            self._outstanding = 0
            if status == _NOTHING and not self._follow:
                return None
            if status not in (_NOTHING, _EXPIRED):  # the consumer or the connection is gone
                self._consumer = ""

    async def aclose(self) -> None:
        """Delete the consumer; if NATS is away, the server drops it after a while."""
        if self._consumer and self._bus.is_connected:
            with suppress(BusError):
                await call_jetstream(self._bus, f"CONSUMER.DELETE.{self._stream}.{self._consumer}")

    async def _create(self) -> None:
        config = {
            "ack_policy": "none",
            "deliver_policy": "by_start_time",
            "opt_start_time": rfc3339(self._start),
            "filter_subjects": [self._filter],
            "inactive_threshold": _INACTIVE_SECONDS * _SECOND_NS,
            "mem_storage": True,
        }
        created = await call_jetstream(
            self._bus,
            f"CONSUMER.CREATE.{self._stream}",
            {"stream_name": self._stream, "config": config},
        )
        self._consumer = str(created["name"])

    async def _pull(self) -> None:
        try:
            # A reader that follows waits for ever; one that only reads the past must not.
            async with asyncio.timeout(None if self._follow else RECONNECT_SECONDS):
                await self._ensure_consumer()
        except TimeoutError:
            raise BusError("lost the connection to NATS: the output is incomplete") from None
        request: dict[str, Any] = {"batch": _BATCH}
        request |= {"expires": _EXPIRES_SECONDS * _SECOND_NS} if self._follow else {"no_wait": True}
        self._outstanding = _BATCH
        await self._bus.publish(self._next, json.dumps(request).encode(), reply=self._inbox)

    @property
    def _next(self) -> str:
        """The subject that asks for messages."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"

    async def _ensure_consumer(self) -> None:
        while not self._consumer or not self._bus.is_connected:
            try:
                await self._bus.wait_connected()
                await self._create()
            except Refused:
                raise
            except BusError:  # NATS is not ready yet, or has not restored the stream
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _take(self) -> Msg | None:
        """Return what arrived; None after a reconnect, or if nothing arrived for too long."""
        if (
            not self._arrived.empty()
        ):  # thousands come at once, and a time limit costs more than one
            return self._arrived.get_nowait()
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                self._bus.refusals.until_refused(self._next),
            ):
                return await self._arrived.get()
        except TimeoutError:
            return None

    def _is_new(self, message: Msg) -> bool:
        at, sequence = message.metadata.timestamp, message.metadata.sequence.stream
        if at <= self._last[0] and sequence <= self._last[1]:
            return False
        self._last = (at, sequence)
        self._start = max(self._start, at)
        return True
