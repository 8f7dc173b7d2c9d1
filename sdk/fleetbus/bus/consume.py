"""Consumes the stream: receive, handle, acknowledge, in that order (rules P9, B7, B15).

One durable pull consumer; messages are handled in batches, because one script call for a hundred
events costs a fortieth of a hundred calls. If the handler fails, nothing of the batch is
acknowledged, the same batch is retried, and pulling stops once the buffer is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from math import inf
from typing import Final

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleetbus.bus.buffer import Buffer, Buffered, Delivery, FifoBuffer
from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import ACK_WAIT
from fleetbus.process.cancellation import cancellable, is_stopped
from fleetbus.process.clock import now_ms
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses, pause_of
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage, TooFarAhead

log = structlog.get_logger()

PULL: Final = 1000
PULL_EXPIRES: Final = timedelta(seconds=30)
_PULL_LOST_AFTER: Final = PULL_EXPIRES.total_seconds() + 1
FIRST_RETRY: Final = timedelta(milliseconds=100)
RETRY_PAUSE: Final = timedelta(seconds=1)
"""The longest pause between two attempts; it begins with `FIRST_RETRY` and doubles."""
_DRAIN_TIMEOUT: Final = timedelta(seconds=2)
"""The longest time that a shutdown waits for the server."""
_NANOSECONDS: Final = 1_000_000_000
_OLD_TOKENS: Final = 9
ACK_WITHIN: Final = timedelta(milliseconds=100)
"""Acknowledgements are collected for so long: each on its own wakes two processes."""
_ACKS: Final = 200
"""This many are sent at once."""
_YIELD_EVERY: Final = 20
"""Messages received before other tasks get a turn."""
_ACK: Final = b""
_TERM: Final = b"+TERM"
_NAK: Final = b"-NAK"
_AGAIN_AFTER: Final = (timedelta(seconds=1), timedelta(seconds=8))
_IN_PROGRESS: Final = b"+WPI"
_PROGRESS_EVERY: Final = ACK_WAIT / 4
_EXPIRED: Final = "408"
_IDLE: Final = "100"
_NO_RESPONDERS: Final = "503"


Handle = Callable[[Sequence[Delivery]], Awaitable[None]]


class PartlyHandled(Exception):
    """A part of a batch was not handled: a server that it needs is away, the others are not.

    The rest is acknowledged. The part comes again after a while, so it does not hold up the stream
    before it fills the consumer's limit of messages without acknowledgement.

    Args:
        failed: the sequences of these messages.
        cause: why.
    """

    def __init__(self, failed: AbstractSet[int], cause: Exception) -> None:
        super().__init__(str(cause))
        self.failed = failed
        self.cause = cause


class Consumer:
    """Pulls from one durable and hands batches to a handler; several processes may share it.

    What is handled is acknowledged within `ACK_WITHIN`.

    Args:
        bus: a connection.
        stream: name of the stream.
        durable: name of the consumer; its owner, the projector, has created it (rule B12).
        handle: handles a batch, which is acknowledged when this returns. It is given rejected
            messages too, to record them; they are terminated afterwards.
        buffer: holds received messages and decides their order; stream order by default.
        on_turn: called at each iteration, for a liveness check.
        progress_every: interval at which long-waiting messages are reported to the server.
        again_after: when a message comes again that was not handled: at first and at last, doubled
            in between.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str,
        durable: str,
        handle: Handle,
        buffer: Buffer | None = None,
        on_turn: Callable[[], None] = lambda: None,
        progress_every: timedelta = _PROGRESS_EVERY,
        again_after: tuple[timedelta, timedelta] = _AGAIN_AFTER,
    ) -> None:
        self._bus = bus
        self._nats = bus.nc
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._durable = durable
        self._handle = handle
        self._inbox = bus.nc.new_inbox()
        # Messages stay here until they are handled, so that a shutdown can give them back.
        self._buffer = buffer or FifoBuffer()
        # The ids of the batches that are being handled, the oldest first.
        self._busy: dict[int, None] = {}
        # Where to send acknowledgements, and which; and when the first of them is to be sent.
        self._acks: list[tuple[str, bytes]] = []
        self._acks_due = inf
        self._received = 0
        # What waited at the last report of progress, when the next is due, and batches since.
        self._waiting: AbstractSet[str] = frozenset()
        self._progress_due = 0.0
        self._batches = 0
        self._wakeup = asyncio.Event()
        # How many messages the server may still send for the open pulls.
        self._outstanding = 0
        self._received_at = 0.0
        self._missing = False
        # The server refused a pull: the next one waits, or it would be a hot loop (rule B15).
        self._refused = False
        self._pauses = Pauses(FIRST_RETRY, RETRY_PAUSE)
        self._log_once = LogOnce()
        self._on_turn = on_turn
        self._progress_every = progress_every.total_seconds()
        self._again_after = again_after

    @property
    def is_missing(self) -> bool:
        """Whether the server answered that there is no such stream or consumer."""
        return self._missing

    async def run(self) -> None:
        """Consume until cancelled; unhandled messages are then given back to the stream."""
        subscription = await self._nats.subscribe(
            self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        stop_listening = self._bus.on_reconnect(self._forget_pulls)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._work_once(group)
        finally:
            stop_listening()
            await self._stop_receiving(subscription)
            await self._nak_unhandled()

    async def _work_once(self, group: asyncio.TaskGroup) -> None:
        self._wakeup.clear()  # first: what happens while we send is not overlooked
        if not self._busy:
            self._on_turn()
        if time.monotonic() > self._received_at + _PULL_LOST_AFTER:
            self._outstanding = 0  # the end of a pull got lost (rule B15)
        if self._outstanding < min(PULL // 2, self._buffer.capacity):
            await self._pull()
        if time.monotonic() >= self._progress_due:
            self._report_progress()
        if len(self._acks) >= _ACKS or time.monotonic() >= self._acks_due:
            await self._send_acks()
        while self._has_free_slot and (batch := self._buffer.take()):
            self._busy[id(batch)] = None
            group.create_task(self._work(batch), name=f"handle {self._durable}")
        wait = self._buffer.wait if self._has_free_slot else inf
        if wait < inf:
            asyncio.get_running_loop().call_later(wait, self._wakeup.set)
        await self._wakeup.wait()

    async def _work(self, batch: Sequence[Buffered]) -> None:
        """Handle one batch and acknowledge it."""
        failed = await self._handle_until_done(batch)
        unfinished = [buffered for buffered in batch if buffered.delivery.unfinished]
        for buffered in batch:
            if not buffered.delivery.unfinished:
                self._end(buffered, failed)
        self._buffer.done(batch, unfinished)
        self._batches += 1
        self._report_turn(batch)
        del self._busy[id(batch)]
        if self._buffer.wait != inf or self._outstanding < PULL // 2:
            self._wakeup.set()
        if unfinished:
            await asyncio.gather(*{t for each in unfinished for t in each.delivery.unfinished})
            for buffered in unfinished:
                self._end(buffered, failed)
            self._buffer.finish(unfinished)
            self._batches += 1
            self._wakeup.set()

    def _end(self, buffered: Buffered, failed: AbstractSet[int]) -> None:
        # TERM: a rejected message is not delivered again (rule B18).
        body = _ACK if buffered.delivery.message is not None else _TERM
        if buffered.delivery.sequence in failed:
            body = _again(buffered, self._again_after)
        self._ack(buffered.reply, body)

    def _ack(self, reply: str, body: bytes = _ACK) -> None:
        """Acknowledge soon. If this process dies first, the message comes again (rule B7)."""
        if not self._acks:
            self._acks_due = time.monotonic() + ACK_WITHIN.total_seconds()
            asyncio.get_running_loop().call_later(ACK_WITHIN.total_seconds(), self._wakeup.set)
        self._acks.append((reply, body))
        if len(self._acks) == _ACKS:
            self._wakeup.set()

    def _report_progress(self) -> None:
        """Keep messages that wait here for long from being delivered to others.

        Only a consumer that gets on with its work does so, however slow it is.
        """
        waiting = [buffered.reply for buffered in self._buffer.unhandled()]
        if self._batches:
            for reply in waiting:
                if reply in self._waiting:
                    self._ack(reply, _IN_PROGRESS)
        self._waiting, self._batches = frozenset(waiting), 0
        self._progress_due = time.monotonic() + self._progress_every
        asyncio.get_running_loop().call_later(self._progress_every, self._wakeup.set)

    async def _send_acks(self) -> None:
        acks, self._acks, self._acks_due = self._acks, [], inf
        for reply, body in acks:
            await self._publish(reply, body)

    @property
    def _has_free_slot(self) -> bool:
        return len(self._busy) < self._buffer.concurrency

    def _report_turn(self, batch: Sequence[Buffered]) -> None:
        # Only the oldest batch counts: progress of others must not hide one that hangs.
        if id(batch) == next(iter(self._busy)):
            self._on_turn()

    async def _stop_receiving(self, subscription: Subscription) -> None:
        """Unsubscribe, and receive what the server has already sent: it is to be given back too."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            if self._nats.is_connected:
                async with asyncio.timeout(_DRAIN_TIMEOUT.total_seconds()):
                    await subscription.drain()
            else:
                await subscription.unsubscribe()

    async def _nak_unhandled(self) -> None:
        """Negatively acknowledge the rest, so that nobody has to wait for the AckWait."""
        for buffered in self._buffer.unhandled():
            self._ack(buffered.reply, _NAK)
        await self._send_acks()

    async def _handle_until_done(self, batch: Sequence[Buffered]) -> AbstractSet[int]:
        """Handle a batch; returns the sequences that are to come again."""
        deliveries = [buffered.delivery for buffered in batch]
        pauses = Pauses(FIRST_RETRY, RETRY_PAUSE)
        while True:
            try:
                await uncancelled(self._handle(deliveries))
            except PartlyHandled as e:
                self._log_failure(e.cause)
                return e.failed
            except Exception as e:  # noqa: BLE001 -- Redis may be down: keep the batch, try again
                self._log_failure(e)
                await pauses.sleep()
                self._report_turn(batch)
            else:
                return frozenset()

    def _log_failure(self, error: Exception) -> None:
        kind, message = type(error).__name__, str(error)
        if self._log_once.should_log(f"{kind} {message}"):
            log.warning("batch_failed", durable=self._durable, error=message, error_type=kind)

    def _forget_pulls(self) -> None:
        """Pull anew: after a reconnect the server knows the open pulls no more."""
        self._outstanding = 0
        self._wakeup.set()

    async def _pull(self) -> None:
        if self._refused:
            await self._pauses.sleep()
            self._refused = False
        request = {
            "batch": PULL,
            "expires": int(PULL_EXPIRES.total_seconds() * _NANOSECONDS),
        }
        self._outstanding += PULL
        self._received_at = time.monotonic()
        await self._publish(self._next, msgspec.json.encode(request), self._inbox)

    async def _publish(self, subject: str, body: bytes, reply: str = "") -> None:
        try:
            with cancellable():
                await self._nats.publish(subject, body, reply)
        except nats.errors.Error as e:
            # The connection is lost: pull again; what is not acknowledged is redelivered.
            log.warning("publish_failed", durable=self._durable, error=str(e) or type(e).__name__)
            self._outstanding, self._refused = 0, True
            self._wakeup.set()

    async def _receive(self, msg: Msg) -> None:
        self._received_at = time.monotonic()
        if self._has_free_slot:
            self._wakeup.set()
        status = (msg.headers or {}).get("Status")
        if status is None:
            self._missing = False
            self._outstanding = max(0, self._outstanding - 1)
            if superseded := self._buffer.add(Buffered(msg.reply, len(msg.data), _read(msg))):
                self._ack(superseded.reply)
            self._received += 1
            if self._received % _YIELD_EVERY == 0:
                # nats-py calls this for all received messages without yielding to other tasks.
                await asyncio.sleep(0)
        elif status != _IDLE:
            self._end_pull(status, msg.headers or {})

    def _end_pull(self, status: str, headers: Mapping[str, str]) -> None:
        """408: expired; 409: ended early, e.g. the consumer was deleted; 503: no responders."""
        self._missing = status == _NO_RESPONDERS or "Deleted" in headers.get("Description", "")
        self._refused = status != _EXPIRED
        if not self._refused:
            self._pauses.reset()
        left = headers.get("Nats-Pending-Messages", "")
        # Other pulls may still be open; only the rest of this one will not come.
        remaining = int(left) if left.isdigit() and not self._missing else self._outstanding
        self._outstanding = max(0, self._outstanding - remaining)


async def uncancelled(step: Awaitable[None]) -> None:
    """Await `step`; turn a cancellation that is not ours into an error, so that it is retried."""
    try:
        await step
    except asyncio.CancelledError as e:
        if is_stopped():
            raise
        raise RuntimeError("the handler ended as cancelled") from e


def _again(buffered: Buffered, after: tuple[timedelta, timedelta]) -> bytes:
    """Ask for a message again, later with every time that it came."""
    tokens = buffered.reply.split(".")
    times = int(tokens[4] if len(tokens) == _OLD_TOKENS else tokens[6])
    delay = pause_of(times, *after)
    return b'-NAK {"delay": %d}' % (delay.total_seconds() * _NANOSECONDS)


def _read(msg: Msg) -> Delivery:
    # Like nats-py's `metadata` in a ninth of the time; newer servers add domain and account.
    tokens = msg.reply.split(".")
    sequence = int(tokens[5] if len(tokens) == _OLD_TOKENS else tokens[7])
    headers = msg.headers or {}
    try:
        message = admit(msg.subject, headers, msg.data, now_ms=now_ms())
    except MalformedMessage as e:
        ahead = e.number if isinstance(e, TooFarAhead) else 0
        return Delivery(None, sequence, msg.subject, headers, str(e), ahead)
    return Delivery(message, sequence, msg.subject, headers)
