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
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.cancellation import cancellable
from fleetbus_proto import codec, headers
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Message

log = structlog.get_logger()

BATCH: Final = 500
PULL: Final = 1000
PULL_EXPIRES: Final = timedelta(seconds=30)
FIRST_RETRY: Final = timedelta(milliseconds=100)
RETRY_PAUSE: Final = timedelta(seconds=1)
"""Between two attempts at what fails; it begins with `FIRST_RETRY` and doubles."""
_LOOK: Final = timedelta(milliseconds=250)
"""How soon a waiting consumer notices a reconnect."""
_NANOSECONDS: Final = 1_000_000_000
_TERM: Final = b"+TERM"
_NAK: Final = b"-NAK"
_EXPIRED: Final = "408"
_IDLE: Final = "100"
_NOBODY: Final = "503"


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
        self._reconnects = nats.stats["reconnects"]
        self._missing = False
        # The server refused a pull: the next one waits, or it would be refused as fast (B15).
        self._refused = False
        self._pause = FIRST_RETRY
        self._turn: Callable[[], None] = lambda: None

    def on_turn(self, beat: Callable[[], None]) -> None:
        """Call `beat` at each turn of the loop, for a liveness check."""
        self._turn = beat

    @property
    def is_missing(self) -> bool:
        """Whether the server answered that there is no such stream or consumer."""
        return self._missing

    async def run(self) -> None:
        """Consume until cancelled; what is not handled by then goes back to the stream."""
        subscription = await self._nats.subscribe(
            self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        try:
            while True:
                await self._work_once()
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()
            await self._give_back()

    async def _work_once(self) -> None:
        self._turn()
        self._forget_lost_pulls()
        if self._outstanding + len(self._waiting) < PULL // 2:
            await self._pull()
        if not self._waiting:
            await self._wait_for_messages()
            return
        # They stay in line until they are handled, so that a stop gives them back.
        batch = [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]
        deliveries = [_read(msg) for msg in batch]
        await self._handle_until_done(deliveries)
        for msg, delivery in zip(batch, deliveries, strict=True):
            self._waiting.popleft()
            # An empty body is an acknowledgement; TERM sets an unreadable message aside (B18).
            await self._publish(msg.reply, b"" if delivery.message is not None else _TERM)

    async def _give_back(self) -> None:
        """Another process, or we after a restart, need not wait until AckWait is over."""
        while self._waiting:
            await self._publish(self._waiting.popleft().reply, _NAK)

    async def _handle_until_done(self, deliveries: Sequence[Delivery]) -> None:
        while True:
            try:
                await self._handle(deliveries)
            except Exception as e:  # noqa: BLE001 -- Redis may be down: keep the batch, try again
                log.warning(
                    "batch_failed", durable=self._durable, error=str(e), error_type=type(e).__name__
                )
                await self._rest()
                self._turn()
            else:
                self._pause = FIRST_RETRY
                return

    async def _rest(self) -> None:
        await asyncio.sleep(min(self._pause, RETRY_PAUSE).total_seconds())
        self._pause = min(2 * self._pause, RETRY_PAUSE)

    async def _wait_for_messages(self) -> None:
        deadline = asyncio.get_running_loop().time() + PULL_EXPIRES.total_seconds() + 1
        self._arrived.clear()
        while not self._waiting and self._outstanding and not self._arrived.is_set():
            self._turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK.total_seconds()):
                    await self._arrived.wait()
            self._forget_lost_pulls()
            if asyncio.get_running_loop().time() > deadline:
                self._outstanding = 0  # the answer was lost: ask again (B15)

    def _forget_lost_pulls(self) -> None:
        """After a reconnect the server does not know of our pulls any more."""
        if self._reconnects != self._nats.stats["reconnects"]:
            self._reconnects = self._nats.stats["reconnects"]
            self._outstanding = 0

    async def _pull(self) -> None:
        if self._refused:
            await self._rest()
            self._refused = False
        request = {
            "batch": PULL,
            "expires": int(PULL_EXPIRES.total_seconds() * _NANOSECONDS),
        }
        self._outstanding += PULL
        await self._publish(self._next, msgspec.json.encode(request), self._inbox)

    async def _publish(self, subject: str, body: bytes, reply: str = "") -> None:
        try:
            with cancellable():
                await self._nats.publish(subject, body, reply)
        except nats.errors.Error as e:
            # The connection is lost. A pull is asked again, what is not acknowledged comes again.
            log.warning("publish_failed", durable=self._durable, error=str(e) or type(e).__name__)
            self._outstanding, self._refused = 0, True

    async def _receive(self, msg: Msg) -> None:
        status = (msg.headers or {}).get("Status")
        if status is None:
            self._missing = False
            self._outstanding = max(0, self._outstanding - 1)
            self._waiting.append(msg)
        elif status != _IDLE:
            self._end_pull(status, msg.headers or {})
        self._arrived.set()

    def _end_pull(self, status: str, told: Mapping[str, str]) -> None:
        """408: a pull expired; 409: it ended early, perhaps as the consumer went; 503: nobody."""
        self._missing = status == _NOBODY or "Deleted" in told.get("Description", "")
        self._refused = status != _EXPIRED
        if not self._refused:
            self._pause = FIRST_RETRY
        left = told.get("Nats-Pending-Messages", "")
        # Other pulls may still be out; only this one's rest is not coming any more.
        rest = int(left) if left.isdigit() and not self._missing else self._outstanding
        self._outstanding = max(0, self._outstanding - rest)


def _read(msg: Msg) -> Delivery:
    sequence = msg.metadata.sequence.stream
    found = msg.headers or {}
    try:
        headers.check_format(found)
        message = codec.decode(msg.data)
    except MalformedMessage as e:
        return Delivery(None, sequence, msg.subject, found, str(e))
    return Delivery(message, sequence, msg.subject, found)
