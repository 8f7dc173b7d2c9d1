"""One call, as its caller sees it: what was granted, what has come, and until when it may take.

Frames arrive through `feed`, which never waits; a task reads `head` and then `next_chunk`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleetbus.errors import Forbidden, Invalid, KubeError, TooManyRequests, Unreachable
from fleetbus.kube.connection.response import BrokenOff, Idle, Limits
from fleetbus_proto.calls import (
    CHUNK_BYTES,
    SILENCE_MS,
    WINDOW_BYTES,
    WORKING_EVERY_MS,
    Body,
    Cancel,
    Credit,
    Failed,
    Frame,
    FrameToCaller,
    Head,
    Reason,
    Working,
)
from fleetbus_proto.subjects import is_instance

SILENCE: Final = SILENCE_MS / 1000
_STILL_WAITING: Final = WORKING_EVERY_MS / 1000

NOT_CONNECTED: Final = "AgentNotConnected"
"""Reason of an error: no agent took the request, so nothing was sent."""
SILENT: Final = "AgentSilent"
"""Reason of an error: the agent that has the request sends nothing any more."""
SERVER_UNREACHABLE: Final = "ApiServerUnreachable"
"""Reason of an error: the agent is well, but its API server does not answer."""


class AgentSilent(BrokenOff):
    """The agent stopped answering, whatever became of the request."""


class MeantAnother(Unreachable):
    """The agent's API server is that of another cluster than was meant; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Times:
    """The longest silences, in seconds; the defaults are the usual ones."""

    silence: float = SILENCE
    still_waiting: float = _STILL_WAITING


class PendingCall:
    """One call that was opened.

    Args:
        id: its id.
        cluster: the cluster that is called.
        limits: its time limits.
        body: of the request; the first chunk went with `Open`.
        send: sends a frame to the agent that has the call, or to all while it is not known;
            returns False if the bus is down.
        forget: called once, when no frame is expected any more.
        times: how long a silence may last.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 -- as in the frames
        cluster: str,
        limits: Limits,
        *,
        body: bytes | None,
        send: Callable[[PendingCall, Frame], bool],
        forget: Callable[[PendingCall], None],
        times: Times,
    ) -> None:
        self.id = id
        self.cluster = cluster
        self.instance = ""
        self._limits = limits
        self._body = body or b""
        self._send = send
        self._forget = forget
        self._times = times
        self._head: Head | None = None
        self._error: BrokenOff | KubeError | None = None
        self._chunks: deque[bytes] = deque()
        # Whether the last piece of the answer has come, or none will.
        self._is_over = False
        self._next_seq = 1
        # Bytes of the answer that were granted and have not come, and that were read since.
        self._credit = WINDOW_BYTES
        self._read = 0
        # Of the request's body: what was sent, and how many pieces.
        self._sent = min(len(self._body), CHUNK_BYTES)
        self._sent_pieces = 0
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._deadline = now + limits.total.total_seconds() if limits.total else float("inf")
        self._idle = limits.idle.total_seconds() if limits.idle else float("inf")
        self._received_at = self._data_at = self._sent_at = now
        self._timer = self._loop.call_at(self._next_check(), self._check)

    # --- frames ---------------------------------------------------------------------------------

    def feed(self, frame: FrameToCaller) -> None:
        """Take a frame of the agent; what breaks the rules of a call ends it."""
        if self._is_over:
            return
        self._received_at = self._loop.time()
        if isinstance(frame, Head):
            self._take_head(frame)
        elif isinstance(frame, Body):
            self._take_body(frame)
        elif isinstance(frame, Credit):
            self._learn_instance(frame.instance)
            self._send_body(frame.bytes)
        elif isinstance(frame, Working):
            self._learn_instance(frame.instance)
        else:
            self.fail(self._error_of(frame))

    def _take_head(self, frame: Head) -> None:
        self._learn_instance(frame.instance)
        if self._head is not None:
            self._break("sent the head of its answer twice")
            return
        self._head = frame
        self._take(frame.data, more=frame.more)

    def _take_body(self, frame: Body) -> None:
        if self._head is None or frame.seq != self._next_seq:
            at = "before the head" if self._head is None else f"piece {frame.seq}"
            self._break(f"lost a part of its answer on the bus: {at} came, not {self._next_seq}")
            return
        self._next_seq += 1
        self._take(frame.data, more=frame.more)

    def _take(self, data: bytes, *, more: bool) -> None:
        self._credit -= len(data)
        if self._credit < 0:
            self._break("sent more of its answer than was asked for")
            return
        self._data_at = self._received_at
        if data:
            self._chunks.append(data)
        if not more:
            self._end()
        self._wake()

    def _learn_instance(self, instance: str) -> None:
        if is_instance(instance):
            self.instance = instance

    def _send_body(self, credit: int) -> None:
        """Send as much of the request's body as the agent takes."""
        while credit > 0 and self._sent < len(self._body):
            piece = self._body[self._sent : self._sent + min(credit, CHUNK_BYTES)]
            credit -= len(piece)
            self._sent += len(piece)
            self._sent_pieces += 1
            more = self._sent < len(self._body)
            self._tell(Body(id=self.id, seq=self._sent_pieces, data=piece, more=more))

    def _tell(self, frame: Frame) -> None:
        self._sent_at = self._loop.time()
        if not self._send(self, frame):
            self.fail(BrokenOff("the connection to NATS was lost"))

    def _error_of(self, failed: Failed) -> BrokenOff | KubeError:
        text = failed.message or f"the agent of the cluster failed: {failed.reason}"
        if self._head is not None:
            return BrokenOff(text)
        if failed.reason == Reason.DENIED:
            return Forbidden(403, "Forbidden", text)
        if failed.reason == Reason.MALFORMED:
            return Invalid(400, "BadRequest", text)
        if failed.reason == Reason.OVERLOADED:
            return TooManyRequests(429, "TooManyRequests", text)
        if failed.reason == Reason.ANOTHER_CLUSTER:
            return MeantAnother(0, "NotAccepted", text)
        is_of_server = failed.reason == Reason.UNREACHABLE
        return Unreachable(0, SERVER_UNREACHABLE if is_of_server else "Unreachable", text)

    def _break(self, what: str) -> None:
        self._give_up(BrokenOff(f"the agent of the cluster {what}"))

    # --- the end --------------------------------------------------------------------------------

    def fail(self, error: BrokenOff | KubeError) -> None:
        """End the call with this error, unless it has ended; what has come can still be read."""
        if self._is_over:
            return
        self._error = error
        self._end()
        self._wake()

    def cancel(self, why: str = "it was given up") -> None:
        """Tell the agent that nobody waits any more, unless the call has ended."""
        if self._chunks and self._error is None:
            self._error = BrokenOff(why)  # what came must not look like the whole
        self._chunks.clear()
        self._give_up(BrokenOff(why))

    def _give_up(self, error: BrokenOff) -> None:
        if not self._is_over:
            self._send(self, Cancel(id=self.id))
            self.fail(error)

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._forget(self)

    # --- time -----------------------------------------------------------------------------------

    def _next_check(self) -> float:
        return min(
            self._deadline,
            self._received_at + self._times.silence,
            self._data_at + self._idle,
            self._sent_at + self._times.still_waiting,
        )

    def _check(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self._give_up(BrokenOff("it took longer than it may"))
        elif now >= self._received_at + self._times.silence:
            self._give_up(AgentSilent("the agent of the cluster stopped answering"))
        elif now >= self._data_at + self._idle:
            self._end_idle(now)
        elif now >= self._sent_at + self._times.still_waiting:
            self._sent_at = now
            if self.instance:
                self._send(self, Credit(id=self.id))
        if not self._is_over:
            self._timer = self._loop.call_at(self._next_check(), self._check)

    def _end_idle(self, now: float) -> None:
        if self._chunks:  # it is the reader that is slow
            self._data_at = now
        else:
            self._give_up(Idle("no data came for too long"))

    # --- the reader -----------------------------------------------------------------------------

    async def head(self) -> Head:
        """Wait for the head of the answer.

        Raises:
            KubeError: the agent has none.
            BrokenOff: none came.
        """
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._head

    async def next_chunk(self) -> bytes:
        """Wait for the next piece of the answer's body, as it is sent; empty at its end.

        Raises:
            BrokenOff: the rest does not come.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return b""
            await self._wait()
        chunk = self._chunks.popleft()
        self._data_at = self._loop.time()
        self._grant(len(chunk))
        return chunk

    def _grant(self, read: int) -> None:
        self._read += read
        if not self._is_over and self._read >= WINDOW_BYTES // 2:
            self._credit += self._read
            grant = Credit(id=self.id, bytes=self._read)
            self._read = 0
            self._tell(grant)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
