"""Pulls messages from the durable, as many as are wanted and no more.

Messages stay in the stream until a chunk is due, so that a process that waits holds none, and one
whose store is away does not grow. No pull stays open (rule B15).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import nats.errors
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.errors import BusError
from fleetbus.process.cancellation import cancellable
from fleetbus_proto.subjects import STREAM

BATCH: Final = 1000
_SILENCE: Final = timedelta(seconds=5)
_ROOM: Final = 1024**2
"""Bytes of a pull beyond one message of the largest size, which must fit."""
_YIELD_EVERY: Final = 50
_DRAINED: Final = frozenset({"404", "408"})
_BYTES_ARE_FULL: Final = "MaxBytes"
_COMPLETED: Final = "Batch Completed"
_LIMIT_IS_REACHED: Final = "MaxAckPending"
_OLD_TOKENS: Final = 9
"""Tokens of the reply subject; newer servers add domain and account."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A message of the stream, not acknowledged yet."""

    message: Msg
    sequence: int
    stored_ns: int
    """When the stream stored it, nanoseconds since 1970 by the server's clock."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one pull."""

    messages: list[Pulled]
    is_drained: bool
    """Nothing more could be delivered."""


class Puller:
    """Pulls from the archiver's durable; created by `open_puller`.

    Args:
        bus: a connection.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.inbox = bus.nc.new_inbox()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{ARCHIVER}"
        self._pulls = 0
        # Of the running pull; messages of an older one that come late are as good as others.
        self._messages: list[Pulled] = []
        self._end: tuple[str, str] | None = None
        self._arrived = asyncio.Event()
        # The next message is larger than a pull may be: it was stored under another limit.
        self._is_huge = False

    async def pull(self) -> Batch:
        """Pull what the durable can deliver at once, up to a thousand messages.

        Raises:
            BusError: it cannot be read; what was delivered comes again.
        """
        self._pulls += 1
        self._messages, self._end = [], None
        most = 1 if self._is_huge else BATCH
        request: dict[str, object] = {"batch": most, "no_wait": True}
        if not self._is_huge:
            request["max_bytes"] = self._bus.max_payload + _ROOM
        reply = f"{self.inbox}.{self._pulls}"
        await self._bus.publish(self._next, msgspec.json.encode(request), reply=reply)
        while self._end is None and len(self._messages) < most:
            self._arrived.clear()
            try:
                async with asyncio.timeout(_SILENCE.total_seconds()):
                    await self._arrived.wait()
            except TimeoutError as e:
                raise BusError(f"consumer {ARCHIVER} does not answer") from e
        is_full = self._end is not None and _BYTES_ARE_FULL in self._end[1]
        self._is_huge = is_full and not self._messages
        return Batch(self._messages, not is_full and self._is_drained())

    async def ack(self, replies: Iterable[str]) -> None:
        """Acknowledge messages, and wait until the server has received that.

        Raises:
            BusError: perhaps not all; they are delivered again.
        """
        try:
            with cancellable():
                for number, reply in enumerate(replies, start=1):
                    await self._bus.nc.publish(reply, b"")
                    if number % BATCH == 0:
                        await self._bus.nc.flush()
                await self._bus.nc.flush()
        except (nats.errors.Error, TimeoutError) as e:
            raise BusError(f"cannot acknowledge: {e or type(e).__name__}") from e

    async def receive(self, message: Msg) -> None:
        """Take a message or a status from the server."""
        status = (message.headers or {}).get("Status")
        if status is None:
            self._messages.append(_read(message))
            if len(self._messages) % _YIELD_EVERY == 0:
                # nats-py calls this for all received messages without yielding to other tasks.
                await asyncio.sleep(0)
            if len(self._messages) < BATCH and not self._is_huge:
                return
        elif message.subject == f"{self.inbox}.{self._pulls}":
            self._end = (status, (message.headers or {}).get("Description", ""))
        self._arrived.set()

    def _is_drained(self) -> bool:
        if self._end is None:
            return False
        status, text = self._end
        if text == _COMPLETED:
            return False
        if status in _DRAINED or _LIMIT_IS_REACHED in text:
            return True
        raise BusError(f"consumer {ARCHIVER} cannot be read: {text or status}")


@asynccontextmanager
async def open_puller(bus: Bus) -> AsyncGenerator[Puller]:
    """Pull for the duration of the block."""
    puller = Puller(bus)
    subscription = await bus.nc.subscribe(
        f"{puller.inbox}.*", cb=puller.receive, pending_msgs_limit=0, pending_bytes_limit=0
    )
    try:
        yield puller
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()


def _read(message: Msg) -> Pulled:
    tokens = message.reply.split(".")
    first = 5 if len(tokens) == _OLD_TOKENS else 7
    return Pulled(message, int(tokens[first]), int(tokens[first + 2]))
