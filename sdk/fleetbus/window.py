"""Publish with acknowledgements: pipelined, bounded, with own deadlines (rules B4, B6, B14, W14).

nats-py's own pipelining has futures that never time out. Here each message waits in a window,
bounded by count and bytes, until JetStream has stored it; when the window is full `publish` waits,
so that the reader behind it stops reading. A message without an answer is sent again with the
same Msg-Id; after half the duplicate window it is given up, because a later repeat could be
stored behind newer ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from fleetbus.bus import Bus
from fleetbus.cancellation import ended

log = structlog.get_logger()

MESSAGES: Final = 1_000
SIZE: Final = 16 * 1024 * 1024
DEADLINE: Final = timedelta(seconds=5)
PATIENCE: Final = timedelta(seconds=60)
"""Half the stream's duplicate window (rule B4)."""
_TICK: Final = 0.5
_SHORTEST_TICK: Final = 0.01
_FIRST_RETRY: Final = 0.05
_LONGEST_RETRY: Final = 1.0
_OVERHEAD: Final = 512
"""Headers and subject, roughly, so that the bound in bytes holds for small bodies too."""


class ApiRefusal(msgspec.Struct, frozen=True):
    """Why JetStream did not store a message."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct, frozen=True):
    """The fate of one message: stored when `error` is None."""

    seq: int = 0
    duplicate: bool = False
    error: ApiRefusal | None = None


Settle = Callable[[Ack], None]
"""Called once for each message, from the event loop; must not block and must not raise."""

GAVE_UP: Final = Ack(error=ApiRefusal(description="no acknowledgement in time"))
_decoder = msgspec.json.Decoder(Ack)
_PERMANENT: Final = 400  # 503 and the like pass; what is wrong with the message itself does not


class _HeaderBlock(str):
    """All headers as the value of the first one, so that nats-py encodes one value, not ten.

    It cleans each value anew at 2 us each, half of what a publish costs; ours are clean (B10).
    """

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> str:
        """Itself: it has no spaces around it."""
        del chars
        return self

    def translate(self, table: object, /) -> str:
        """Itself: its line ends are those between headers."""
        del table
        return self


def _as_block(headers: dict[str, str]) -> dict[str, str]:
    (first, value), *rest = headers.items()
    text = "\r\n".join([value, *[f"{name}: {text}" for name, text in rest]])
    if not text.isascii() or text.count("\n") != len(rest) or text.count("\r") != len(rest):
        raise ValueError(f"headers that are not plain ASCII: {headers!r}")
    return {first: _HeaderBlock(text)}


class _Pending:
    __slots__ = ("body", "first", "headers", "retry_after", "sent", "settle", "size", "subject")

    def __init__(
        self, subject: str, body: bytes, headers: dict[str, str], settle: Settle, now: float
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers = _as_block(headers)
        self.settle = settle
        self.size = len(body) + _OVERHEAD
        self.first = self.sent = now
        self.retry_after = _FIRST_RETRY


class Window:
    """All unacknowledged messages of one connection; make it with `open_window`.

    Attributes:
        inbox: the subject below which the acknowledgements come.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        messages: int = MESSAGES,
        size: int = SIZE,
        deadline: timedelta = DEADLINE,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._bus = bus
        self._max_messages = messages
        self._max_size = size
        self._deadline = deadline.total_seconds()
        self._patience = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self.inbox = bus.nc.new_inbox() + "."
        self._count = 0
        self._pending: dict[str, _Pending] = {}  # in the order of the first sending
        self._size = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._overdue = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def in_flight(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self._pending)

    @property
    def size(self) -> int:
        """How many bytes they hold."""
        return self._size

    @property
    def oldest_age(self) -> timedelta:
        """How long the oldest has waited."""
        for entry in self._pending.values():
            return timedelta(seconds=self._loop.time() - entry.first)
        return timedelta()

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str], settle: Settle
    ) -> None:
        """Send one message as soon as the window has room; `settle` hears its fate later.

        A cancellation while it is handed to nats-py leaves it in the window: it may be stored.

        Raises:
            ValueError: a header is not plain ASCII (B10).
        """
        size = len(body) + _OVERHEAD
        while not self._has_room(size) or not self._bus.is_connected:
            await self._wait_for_room()
        entry = _Pending(subject, body, headers, settle, self._loop.time())
        self._count += 1
        token = str(self._count)
        self._pending[token] = entry
        self._size += size
        self._empty.clear()
        if self._waiters:
            self._wake()
        await self._send(token, entry)

    async def send(self, subject: str, body: bytes, headers: dict[str, str]) -> Ack:
        """Publish one message and wait for its fate."""
        fate: asyncio.Future[Ack] = self._loop.create_future()

        def settle(ack: Ack) -> None:
            if not fate.done():
                fate.set_result(ack)

        await self.publish(subject, body, headers, settle)
        return await fate

    async def drain(self, within: timedelta) -> bool:
        """Wait until nothing is in flight; False if that took too long."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, token: str, entry: _Pending) -> None:
        task = asyncio.current_task()
        # More than none in a task that cleans up after its cancellation.
        cancelled = task.cancelling() if task is not None else 0
        try:
            await self._bus.nc.publish(entry.subject, entry.body, self.inbox + token, entry.headers)
        except nats.errors.OutboundBufferLimitError:
            pass  # the connection was lost this moment: it goes out again after the reconnect
        except nats.errors.MaxPayloadError as e:
            # The limit fell since the caller read it: a reconnect to another server.
            self._settle(token, Ack(error=ApiRefusal(_PERMANENT, description=str(e))))
        except nats.errors.ConnectionClosedError:
            self._settle(token, GAVE_UP)
        # nats-py swallows the cancellation of a publish that waits for its buffer (B14).
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError

    # --- room ---------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        if not self._pending:
            return True
        return len(self._pending) < self._max_messages and self._size + size <= self._max_size

    async def _wait_for_room(self) -> None:
        if not self._bus.is_connected:
            # Nothing new goes into the buffer of nats-py meanwhile: it would be delivered later,
            # when nobody knows any more whether it should be.
            await self._bus.wait_connected()
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake()  # the room that was ours goes to the next
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # --- answers ------------------------------------------------------------------------------

    async def on_ack(self, message: Msg) -> None:
        """Take one answer of JetStream."""
        token = message.subject[len(self.inbox) :]
        entry = self._pending.get(token)
        if entry is None:
            return
        ack = _read_ack(message.data)
        if ack.error is None or ack.error.code == _PERMANENT:
            self._settle(token, ack)
            return
        # No stream (yet), no leader: ask again soon, but not in a hot loop (B15).
        entry.sent = self._loop.time() - self._deadline + entry.retry_after
        entry.retry_after = min(2 * entry.retry_after, _LONGEST_RETRY)
        self._overdue.set()

    def _settle(self, token: str, ack: Ack) -> None:
        entry = self._pending.pop(token, None)
        if entry is None:
            return
        self._size -= entry.size
        if not self._pending:
            self._empty.set()
        self._wake()
        entry.settle(ack)

    # --- deadlines ----------------------------------------------------------------------------

    def hurry(self) -> None:
        """Send everything again now: the connection is new, and nobody knows what arrived."""
        for entry in self._pending.values():
            entry.sent = float("-inf")
        self._overdue.set()

    async def resend_for_ever(self) -> None:
        """Send what is overdue again, give up what is too old (rules B4, B6)."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_tick()):
                    await self._overdue.wait()
            self._overdue.clear()
            self._give_up()
            await self._resend()

    def _next_tick(self) -> float:
        """Seconds until the next message is overdue, within bounds."""
        now = self._loop.time()
        due = min((entry.sent for entry in self._pending.values()), default=now) + self._deadline
        return min(max(due - now, _SHORTEST_TICK), _TICK)

    def _give_up(self) -> None:
        limit = self._loop.time() - self._patience
        late = [token for token, entry in self._pending.items() if entry.first < limit]
        if late:
            log.warning("publishes_given_up", count=len(late))
        for token in late:
            self._settle(token, GAVE_UP)

    async def _resend(self) -> None:
        limit = self._loop.time() - self._deadline
        for token, entry in [t for t in self._pending.items() if t[1].sent < limit]:
            if not self._bus.is_connected:
                return
            if token in self._pending:
                entry.sent = self._loop.time()
                await self._send(token, entry)


@asynccontextmanager
async def open_window(
    bus: Bus,
    *,
    messages: int = MESSAGES,
    size: int = SIZE,
    deadline: timedelta = DEADLINE,
    patience: timedelta = PATIENCE,
) -> AsyncGenerator[Window]:
    """A publish window that works as long as the block lasts; drain it before you leave."""
    window = Window(bus, messages=messages, size=size, deadline=deadline, patience=patience)
    subscription = await bus.nc.subscribe(
        f"{window.inbox}*",
        cb=window.on_ack,
        pending_msgs_limit=0,
        pending_bytes_limit=0,
    )
    bus.on_reconnect(window.hurry)
    resender = asyncio.create_task(window.resend_for_ever(), name="publish-resender")
    try:
        yield window
    finally:
        try:
            await ended(resender)
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()


def _read_ack(data: bytes) -> Ack:
    if not data:  # an empty answer with status 503: nobody listens on the subject
        return Ack(error=ApiRefusal(503, description="no stream"))
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as e:
        return Ack(error=ApiRefusal(503, description=f"unreadable answer: {e}"))
