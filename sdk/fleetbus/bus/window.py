"""Publish with acknowledgements: pipelined, bounded, with own deadlines (rules B4, B6, B14, W14).

nats-py's own pipelining has futures that never time out. Here each message stays in a window,
bounded by count and bytes, until JetStream has stored it; when the window is full `publish` waits,
which pushes back on the reader. A message without an answer is sent again with the same Msg-Id;
after half the duplicate window it is given up, because a later repeat could be stored behind newer
messages. Messages that may wait for each other can be sent as a batch (`fleetbus.bus.batch`);
otherwise nothing changes: each of them is in the window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, NamedTuple

import nats.errors
import structlog
from nats.aio.msg import Msg

from fleetbus.bus import batch
from fleetbus.bus.acks import GAVE_UP, PERMANENT, Ack, ApiRefusal, Settle, read_ack
from fleetbus.bus.batch import LIMITS, Batch, Outgoing, Pace, PaceLimits
from fleetbus.bus.connection import Bus
from fleetbus.bus.patches.header_encoding import to_block
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import pause_of

log = structlog.get_logger()

MESSAGES: Final = 1_000
SIZE: Final = 16 * 1024 * 1024
DEADLINE: Final = timedelta(seconds=5)
PATIENCE: Final = timedelta(seconds=60)
"""Half the stream's duplicate window (rule B4)."""
_TICK: Final = 0.5
_SHORTEST_TICK: Final = 0.01
_FIRST_RETRY: Final = timedelta(seconds=0.05)
_LONGEST_RETRY: Final = timedelta(seconds=1)
_LARGE: Final = 64 * 1024
"""A larger body is sent alone: a batch gains nothing, and its headers may make it too large."""
_FEW: Final = 20
"""Fewer messages are sent one by one: each batch makes the server create a few files."""
_OVERHEAD: Final = 512
"""For headers and subject, roughly, so that the bound in bytes also holds for small bodies."""


class _Pending:
    __slots__ = ("body", "first", "headers", "refusals", "sent", "settle", "size", "subject")

    def __init__(
        self, subject: str, body: bytes, headers: dict[str, str], settle: Settle, now: float
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers = to_block(headers)
        self.settle = settle
        self.size = len(body) + _OVERHEAD
        self.first = self.sent = now
        self.refusals = 0


class _Waiter(NamedTuple):
    turn: asyncio.Future[None]
    messages: int
    size: int


class Window:
    """All unacknowledged messages of one connection; created by `open_window`.

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
        pace: PaceLimits = LIMITS,
    ) -> None:
        self._bus = bus
        self._max_messages = messages
        self._max_size = size
        self._deadline = deadline.total_seconds()
        self._patience = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self.inbox = bus.nc.new_inbox() + "."
        self._count = 0
        self._pending: dict[str, _Pending] = {}  # in the order in which they were first sent
        self._size = 0
        self._waiters: deque[_Waiter] = deque()  # first come, first served
        self._batches: dict[str, Batch] = {}
        self._batches_after = 0.0  # the time from which they may be used
        self._pace = Pace(pace)
        self._has_logged_refusal = False  # that the server refuses batches
        self._log_once = LogOnce()
        self._overdue = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def in_flight(self) -> int:
        """Number of messages without an acknowledgement."""
        return len(self._pending)

    @property
    def size(self) -> int:
        """Total size of the messages in flight."""
        return self._size

    @property
    def oldest_age(self) -> timedelta:
        """Age of the oldest message in flight."""
        for entry in self._pending.values():
            return timedelta(seconds=self._loop.time() - entry.first)
        return timedelta()

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str], settle: Settle
    ) -> None:
        """Send one message once the window has capacity; `settle` is called with its outcome later.

        A cancellation while it is handed to nats-py leaves it in the window: it may be stored.

        Raises:
            ValueError: a header is not plain ASCII (B10).
        """
        size = len(body) + _OVERHEAD
        if self._waiters or not self._has_capacity(1, size) or not self._bus.is_connected:
            await self._reserve(1, size)
        entry = _Pending(subject, body, headers, settle, self._loop.time())
        token = self._enter(entry)
        if self._waiters:
            self._wake()
        await self._send(token, entry)

    @property
    def prefers_batches(self) -> bool:
        """Whether messages that may wait for each other should be sent as batches now."""
        now = self._loop.time()
        return now >= self._batches_after and self._pace.prefers_batches(now)

    @property
    def batch_limits(self) -> tuple[int, int]:
        """The most messages and bytes of a batch, so that at least two fit into the window."""
        return min(batch.MESSAGES, self._max_messages // 2), self._max_size // 4

    async def publish_batch(self, messages: Sequence[Outgoing]) -> None:
        """Send messages as one atomic batch once the window has capacity for all of them.

        No more than `batch_limits`. Each gets its own outcome: if the batch is refused, or its
        outcome is unknown, they are sent again one by one. A cancellation leaves them in the
        window.

        Raises:
            ValueError: a header is not plain ASCII (B10); none is sent.
        """
        entries = [_Pending(*message, 0.0) for message in messages]
        await self._reserve(len(entries), sum(entry.size for entry in entries))
        now = self._loop.time()
        for entry in entries:
            entry.first = entry.sent = now
        tokens = tuple([self._enter(entry) for entry in entries])
        self._count += 1
        token = str(self._count)
        new_batch = Batch(f"{self.inbox.split('.')[-2]}-{token}", tokens, now)
        self._batches[token] = new_batch
        self._wake()
        await self._send_batch(token, new_batch)

    async def send(self, subject: str, body: bytes, headers: dict[str, str]) -> Ack:
        """Publish one message and wait for its outcome."""
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

    def _enter(self, entry: _Pending) -> str:
        self._count += 1
        token = str(self._count)
        self._pending[token] = entry
        self._size += entry.size
        self._empty.clear()
        return token

    async def _send(self, token: str, entry: _Pending) -> None:
        task = asyncio.current_task()
        # Non-zero if this task was already cancelled and is cleaning up.
        cancelled = task.cancelling() if task is not None else 0
        try:
            await self._bus.nc.publish(entry.subject, entry.body, self.inbox + token, entry.headers)
        except nats.errors.OutboundBufferLimitError:
            pass  # the connection was just lost: it is sent again after the reconnect
        except nats.errors.MaxPayloadError as e:
            # The limit is lower since the caller read it: a reconnect to another server.
            self._settle(token, Ack(error=ApiRefusal(PERMANENT, description=str(e))))
        except nats.errors.ConnectionClosedError:
            self._settle(token, GAVE_UP)
        # nats-py swallows a cancellation while it waits for its buffer (rule B14).
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError

    async def _send_batch(self, token: str, new_batch: Batch) -> None:
        is_out = False
        try:
            # A message that is itself at fault fails again when it is sent alone.
            with suppress(nats.errors.Error):
                is_out = await self._send_parts(token, new_batch)
        finally:
            if not is_out:
                self._send_singly(new_batch)

    async def _send_parts(self, token: str, new_batch: Batch) -> bool:
        """Whether all were sent; stops if one was sent singly in the meantime."""
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        for position, entry_token in enumerate(new_batch.tokens, 1):
            entry = self._pending.get(entry_token)
            if entry is None or entry.sent != new_batch.sent:
                return False  # overdue, or the connection is new
            reply = self.inbox + token if position == len(new_batch.tokens) else ""
            headers = batch.batch_headers(new_batch, position, entry.headers)
            await self._bus.nc.publish(entry.subject, entry.body, reply, headers)
            if task is not None and task.cancelling() > cancelled:
                raise asyncio.CancelledError
        return True

    # --- capacity -----------------------------------------------------------------------------

    def _has_capacity(self, count: int, size: int) -> bool:
        if not self._pending:
            return True
        messages = len(self._pending) + count
        return messages <= self._max_messages and self._size + size <= self._max_size

    async def _reserve(self, count: int, size: int) -> None:
        """Wait for capacity, behind earlier waiters."""
        is_first = not self._waiters
        while not (is_first and self._has_capacity(count, size) and self._bus.is_connected):
            if self._bus.is_connected:
                await self._wait_for_capacity(
                    _Waiter(self._loop.create_future(), count, size), is_first
                )
            else:
                # Do not fill the buffer of nats-py meanwhile: its content would be delivered later,
                # when the message may have been given up.
                await self._bus.wait_connected()
            is_first = True

    async def _wait_for_capacity(self, waiter: _Waiter, is_first: bool) -> None:
        if is_first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            self._wake()  # pass on the capacity that was given to us, or that we waited for
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.turn.done():
                if self._has_capacity(waiter.messages, waiter.size):
                    self._waiters.popleft()
                    waiter.turn.set_result(None)
                return
            self._waiters.popleft()

    # --- answers ------------------------------------------------------------------------------

    async def on_ack(self, message: Msg) -> None:
        """Handle one answer of JetStream."""
        token = message.subject[len(self.inbox) :]
        entry = self._pending.get(token)
        if entry is None:
            self._on_batch_ack(token, message.data)
            return
        ack = read_ack(message.data)
        if ack.error is None or ack.error.code == PERMANENT:
            self._settle(token, ack)
            self._pace.note(self._loop.time(), entry.sent, len(self._pending), 1)
            return
        # No stream (yet), or no leader: retry soon, but not in a hot loop (rule B15).
        entry.refusals += 1
        pause = pause_of(entry.refusals, _FIRST_RETRY, _LONGEST_RETRY)
        entry.sent = self._loop.time() - self._deadline + pause.total_seconds()
        self._overdue.set()

    def _on_batch_ack(self, token: str, answer: bytes) -> None:
        acked_batch = self._batches.pop(token, None)
        if acked_batch is None:
            return
        count = len(acked_batch.tokens)
        self._pace.note(self._loop.time(), acked_batch.sent, len(self._pending), count)
        ack = read_ack(answer)
        if ack.error is None and batch.is_whole(acked_batch, answer):
            for position, entry_token in enumerate(acked_batch.tokens, 1):
                self._settle(entry_token, Ack(seq=ack.seq - count + position))
            return
        self._on_batch_refused(
            ack.error or ApiRefusal(PERMANENT, batch.UNKNOWN, "the server does not support batches")
        )
        self._send_singly(acked_batch)

    def _on_batch_refused(self, refusal: ApiRefusal) -> None:
        if refusal.err_code == batch.TOO_MANY:
            self._batches_after = self._loop.time() + batch.PAUSE
        elif batch.is_unusable(refusal.err_code):
            self._batches_after = float("inf")
            if not self._has_logged_refusal:
                self._has_logged_refusal = True
                log.warning("batches_refused", error=refusal.description, effect="sent singly")

    def _send_singly(self, new_batch: Batch) -> None:
        for entry_token in new_batch.tokens:
            entry = self._pending.get(entry_token)
            if entry is not None and entry.sent == new_batch.sent:
                entry.sent = float("-inf")
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

    def resend_all(self) -> None:
        """Send everything again now: after a reconnect it is unknown what arrived."""
        for entry in self._pending.values():
            entry.sent = float("-inf")
        self._batches_after = 0.0  # it may be another server
        self._overdue.set()

    async def resend_for_ever(self) -> None:
        """Resend overdue messages, give up those that are too old (rules B4, B6)."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_tick()):
                    await self._overdue.wait()
            self._overdue.clear()
            self._give_up()
            self._forget_batches()
            self._warn()
            await self._resend()

    def _next_tick(self) -> float:
        """Seconds until the next message is overdue, within bounds."""
        if not self._pending:  # whatever is published from now on has a whole deadline
            return min(self._deadline, self._patience)
        now = self._loop.time()
        due = min(entry.sent for entry in self._pending.values()) + self._deadline
        return min(max(due - now, _SHORTEST_TICK), _TICK)

    def _give_up(self) -> None:
        limit = self._loop.time() - self._patience
        late = [token for token, entry in self._pending.items() if entry.first < limit]
        if late:
            log.warning("publishes_given_up", count=len(late))
        for token in late:
            self._settle(token, GAVE_UP)

    def _warn(self) -> None:
        """Log that nothing is stored, as while a NATS cluster has no quorum."""
        oldest = self.oldest_age.total_seconds()
        if oldest > self._deadline and self._bus.is_connected and self._log_once.should_log():
            count = len(self._pending)
            log.warning("publishes_unanswered", count=count, oldest_seconds=round(oldest, 1))

    def _forget_batches(self) -> None:
        """Drop batches without an answer whose messages are all settled."""
        for token, pending_batch in tuple(self._batches.items()):
            if not any(entry_token in self._pending for entry_token in pending_batch.tokens):
                del self._batches[token]

    async def _resend(self) -> None:
        limit = self._loop.time() - self._deadline
        for token, entry in [t for t in self._pending.items() if t[1].sent < limit]:
            if not self._bus.is_connected:
                return
            if token in self._pending:
                entry.sent = self._loop.time()
                await self._send(token, entry)


class Gathering:
    """Collects messages that may wait for each other, those of a list, into batches.

    Call `flush` after the last one.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._held: list[Outgoing] = []
        self._size = 0

    async def publish(self, message: Outgoing) -> None:
        """Send a message now or with the next ones; waits while the window is full (rule W14).

        Raises:
            ValueError: a header is not plain ASCII (B10).
        """
        if len(message.body) > _LARGE or not (self._held or self._window.prefers_batches):
            await self._window.publish(*message)
            return
        most, size = self._window.batch_limits
        self._held.append(message)
        self._size += len(message.body)
        if len(self._held) >= most or self._size >= size:
            await self.flush()

    async def flush(self) -> None:
        """Send the messages that are held back."""
        messages, self._held, self._size = self._held, [], 0
        if len(messages) >= _FEW:
            await self._window.publish_batch(messages)
            return
        for message in messages:
            await self._window.publish(*message)


@asynccontextmanager
async def open_window(
    bus: Bus,
    *,
    messages: int = MESSAGES,
    size: int = SIZE,
    deadline: timedelta = DEADLINE,
    patience: timedelta = PATIENCE,
    pace: PaceLimits = LIMITS,
) -> AsyncGenerator[Window]:
    """A publish window for the duration of the block; drain it before leaving."""
    window = Window(
        bus, messages=messages, size=size, deadline=deadline, patience=patience, pace=pace
    )
    subscription = await bus.nc.subscribe(
        f"{window.inbox}*",
        cb=window.on_ack,
        pending_msgs_limit=0,
        pending_bytes_limit=0,
    )
    bus.on_reconnect(window.resend_all)
    resender = asyncio.create_task(window.resend_for_ever(), name="publish-resender")
    try:
        yield window
    finally:
        try:
            await cancel_and_wait(resender)
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
