"""Bus message → handled → acknowledged, in that order (rules P9, B7, B15).

One durable pull consumer; messages are gathered into batches, because one script call for a
hundred events costs a fortieth of a hundred calls. A handler that fails keeps the batch: nothing
is acknowledged, pulling stops, and the same batch is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.cancellation import cancellable
from fleetbus_proto import codec, headers
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Message

log = structlog.get_logger()

BATCH: Final = 100
PULL: Final = 500
PULL_EXPIRES: Final = timedelta(seconds=30)
RETRY_PAUSE: Final = timedelta(seconds=1)
_NANOSECONDS: Final = 1_000_000_000
_TERM: Final = b"+TERM"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the stream; `message` is None if its body could not be read."""

    message: Message | None
    sequence: int
    subject: str
    headers: Mapping[str, str]
    problem: str = ""


Handle = Callable[[Sequence[Delivery]], Awaitable[None]]


class Consumer:
    """Pulls from one durable and hands batches to a handler; several processes may share it.

    Args:
        nats: a connection.
        stream: name of the stream.
        durable: name of the consumer; its owner, the projector, has created it (rule B12).
        handle: takes a batch in stream order; when it returns the batch is acknowledged. It is
            given unreadable messages too, to set them aside; they are terminated afterwards.
    """

    def __init__(self, nats: Client, *, stream: str, durable: str, handle: Handle) -> None:
        self._nats = nats
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._durable = durable
        self._handle = handle
        self._inbox = nats.new_inbox()
        self._waiting: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        # How many messages the server may still send for the pulls that are out.
        self._outstanding = 0
        self._reconnects = 0
        self._missing = False
        self._turn: Callable[[], None] = lambda: None

    def on_turn(self, beat: Callable[[], None]) -> None:
        """Call `beat` at each turn of the loop, for a liveness check."""
        self._turn = beat

    @property
    def is_missing(self) -> bool:
        """Whether the server answered that there is no such stream or consumer."""
        return self._missing

    async def run(self) -> None:
        """Consume until cancelled."""
        subscription = await self._nats.subscribe(
            self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        try:
            while True:
                await self._work_once()
        finally:
            if not self._nats.is_closed:
                await subscription.unsubscribe()

    async def _work_once(self) -> None:
        self._turn()
        if self._outstanding + len(self._waiting) < PULL // 2:
            await self._pull()
        if not self._waiting:
            await self._wait_for_messages()
            return
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        deliveries = [_read(msg) for msg in batch]
        await self._handle_until_done(deliveries)
        for msg, delivery in zip(batch, deliveries, strict=True):
            # An empty body is an acknowledgement; TERM sets an unreadable message aside (B18).
            await self._publish(msg.reply, b"" if delivery.message is not None else _TERM)

    async def _handle_until_done(self, deliveries: Sequence[Delivery]) -> None:
        while True:
            try:
                await self._handle(deliveries)
            except Exception as e:  # noqa: BLE001 -- Redis may be down: keep the batch, try again
                log.warning(
                    "batch_failed", durable=self._durable, error=str(e), error_type=type(e).__name__
                )
                await asyncio.sleep(RETRY_PAUSE.total_seconds())
                self._turn()
            else:
                return

    async def _wait_for_messages(self) -> None:
        deadline = asyncio.get_running_loop().time() + PULL_EXPIRES.total_seconds() + 1
        self._arrived.clear()
        while not self._waiting and self._outstanding and not self._arrived.is_set():
            self._turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._arrived.wait()
            expired = asyncio.get_running_loop().time() > deadline
            if expired or self._reconnects != self._nats.stats["reconnects"]:
                # The server has forgotten the pull, or its answer was lost: ask again (B15).
                self._outstanding = 0

    async def _pull(self) -> None:
        if self._missing:
            await asyncio.sleep(RETRY_PAUSE.total_seconds())
        request = {
            "batch": PULL,
            "expires": int(PULL_EXPIRES.total_seconds() * _NANOSECONDS),
        }
        self._outstanding += PULL
        self._reconnects = self._nats.stats["reconnects"]
        await self._publish(self._next, msgspec.json.encode(request), self._inbox)

    async def _publish(self, subject: str, body: bytes, reply: str = "") -> None:
        with cancellable():
            await self._nats.publish(subject, body, reply)

    async def _receive(self, msg: Msg) -> None:
        status = (msg.headers or {}).get("Status")
        if status is None:
            self._missing = False
            self._outstanding -= 1
            self._waiting.append(msg)
        elif status != "100":  # 100 is an idle heartbeat
            # 408: the pull expired; 409: it ended early, perhaps because the consumer went;
            # 503: no such stream or consumer.
            description = (msg.headers or {}).get("Description", "")
            self._missing = status == "503" or "Deleted" in description
            self._outstanding = 0
        self._arrived.set()


def _read(msg: Msg) -> Delivery:
    sequence = msg.metadata.sequence.stream
    found = msg.headers or {}
    try:
        headers.check_format(found)
        message = codec.decode(msg.data)
    except MalformedMessage as e:
        return Delivery(None, sequence, msg.subject, found, str(e))
    return Delivery(message, sequence, msg.subject, found)
