"""What the stream has of a subject since a point in time, message by message.

The consumer is our own and lives in the server's memory: a server that was restarted has forgotten
it, and with it the pull that was out. Then another consumer goes on behind the last message.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.errors import BusError
from fleetbus.process.clock import rfc3339
from fleetbus_proto.subjects import STREAM

_SECOND_NS: Final = 1_000_000_000
_INACTIVE_SECONDS: Final = 60
_EXPIRES_SECONDS: Final = 30
_ANSWER_SECONDS: Final = _EXPIRES_SECONDS + 5
BACK_WITHIN_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5
_BATCH: Final = 200
_NOTHING: Final = "404"
_EXPIRED: Final = "408"


class History:
    """Pulls batch after batch.

    Args:
        bus: a connection.
        subject: a filter.
        start: the time of the first message.
        follow: whether to wait for more at the end.
    """

    def __init__(self, bus: Bus, *, subject: str, start: datetime, follow: bool) -> None:
        self._bus = bus
        self._filter = subject
        self._start = start
        self._follow = follow
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._inbox = ""
        self._consumer = ""
        self._is_asked = False
        # Of the last message: another consumer begins at its time, and so repeats it.
        self._last = (datetime.min.replace(tzinfo=UTC), 0)
        bus.on_reconnect(lambda: self._arrived.put_nowait(None))

    async def open(self) -> None:
        """Make the consumer.

        Raises:
            BusError: there is no stream, or nothing is known.
        """
        self._inbox = self._bus.nc.new_inbox()
        await self._bus.nc.subscribe(self._inbox, cb=self._arrived.put)
        await self._create()

    async def next(self) -> Msg | None:
        """The next message; None when there are no more and we do not follow.

        Raises:
            BusError: NATS stays away, and we do not follow.
        """
        while True:
            if not self._is_asked:
                await self._ask()
            message = await self._take()
            status = (message.headers or {}).get("Status") if message is not None else ""
            if message is not None and status is None:
                if self._is_new(message):
                    return message
                continue
            self._is_asked = False
            if status == _NOTHING and not self._follow:
                return None
            if status not in (_NOTHING, _EXPIRED):  # the consumer, or the connection, is gone
                self._consumer = ""

    async def aclose(self) -> None:
        """Remove the consumer; a server that cannot be asked forgets it by itself."""
        if self._consumer and self._bus.is_connected:
            with suppress(BusError):
                await call_jetstream(self._bus, f"CONSUMER.DELETE.{STREAM}.{self._consumer}")

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
            self._bus, f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config}
        )
        self._consumer = str(created["name"])

    async def _ask(self) -> None:
        try:
            # Who follows waits for ever; who only wants the past must not.
            async with asyncio.timeout(None if self._follow else BACK_WITHIN_SECONDS):
                await self._be_there()
        except TimeoutError:
            raise BusError("NATS went away and did not come back; this is not all") from None
        request: dict[str, Any] = {"batch": _BATCH}
        request |= {"expires": _EXPIRES_SECONDS * _SECOND_NS} if self._follow else {"no_wait": True}
        self._is_asked = True
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}"
        await self._bus.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    async def _be_there(self) -> None:
        while not self._consumer or not self._bus.is_connected:
            try:
                await self._bus.wait_connected()
                await self._create()
            except BusError:  # it is not ready yet, or its stream is not there again
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _take(self) -> Msg | None:
        """What arrived; None if the connection was away, or nothing came for too long."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
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
