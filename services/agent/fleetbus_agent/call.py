"""One call: collect the request, ask the policy, send it, pass the answer on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.errors import KubeError, NotAccepted
from fleetbus.kube.connection.http import HttpResponse
from fleetbus.kube.connection.response import BrokenOff, Limits
from fleetbus.kube.requests import Call, acting_as
from fleetbus_agent import metrics
from fleetbus_agent.answers import Answers
from fleetbus_agent.attributes import (
    Attributes,
    UnclearRequest,
    impersonation,
    read_attributes,
)
from fleetbus_agent.body_budget import BodyBudget
from fleetbus_agent.failures import CallFailed
from fleetbus_agent.member_server import MemberServer
from fleetbus_agent.policy import Policy
from fleetbus_proto.calls import (
    ANSWER_HEADERS,
    MAX_CREDIT_BYTES,
    Body,
    Credit,
    Failed,
    Head,
    Open,
    Reason,
    Working,
)

_UPLOAD_WINDOW: Final = 256 * 1024
"""Bytes of a request's body that may be on their way."""
_LONGEST_HEADER: Final = 8192
CANCELLED: Final = "Cancelled"
"""The outcome of a call that ends with neither an answer nor a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The parts of an agent that all calls share."""

    instance: str
    server: MemberServer
    policy: Policy
    answers: Answers
    budget: BodyBudget
    max_request_bytes: int


class AgentCall:
    """One call; its task runs `run`, and frames that follow are handed to it.

    Args:
        frame: the request.
        member: what all calls share.

    Attributes:
        attributes: what the request asks for; None if that is unclear.
        received_at: when the caller last sent anything, in `time.monotonic()`.
        sent_at: when anything was last sent to it.
        passed_on: bytes of the answer's body so far.
        outcome: the status code, or why there is none.
    """

    def __init__(self, frame: Open, member: Member) -> None:
        self.frame = frame
        self.attributes: Attributes | None = None
        self.began_at = self.received_at = self.sent_at = time.monotonic()
        self.passed_on = 0
        self.outcome = CANCELLED
        self._member = member
        self._credit = min(frame.credit, MAX_CREDIT_BYTES)
        self._was_sent = False
        self._parts = [frame.body or b""]
        self._body_size = len(frame.body or b"")
        self._next_seq = 1
        self._has_body = not frame.more
        self._failure: CallFailed | None = None
        self._changed = asyncio.Event()

    # --- frames ---------------------------------------------------------------------------------

    def take_credit(self, frame: Credit) -> None:
        """The caller takes more of the answer, or still waits."""
        self.received_at = time.monotonic()
        self._credit = min(self._credit + frame.bytes, MAX_CREDIT_BYTES)
        self._changed.set()

    def take_body(self, frame: Body) -> None:
        """Take the next piece of the request's body."""
        self.received_at = time.monotonic()
        if self._has_body or frame.seq != self._next_seq:
            text = f"a part of the request was lost on the bus: piece {frame.seq} came"
            self._failure = CallFailed(Reason.MALFORMED, text)
        else:
            self._next_seq += 1
            self._parts.append(frame.data)
            self._body_size += len(frame.data)
            self._has_body = not frame.more
        self._changed.set()

    def say_working(self) -> None:
        """Tell the caller that the call goes on."""
        self.sent_at = time.monotonic()
        self._member.answers.tell(Working(id=self.frame.id, instance=self._member.instance))

    def tell_stopped(self) -> None:
        """Tell the caller that the agent ends the call, whatever has become of it."""
        text = "the agent was stopped before the call had ended"
        self._member.answers.tell(
            Failed(id=self.frame.id, reason=Reason.STOPPED, message=text, was_sent=self._was_sent)
        )

    # --- the task -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the call; every failure is reported to the caller."""
        within = self.frame.within / 1000 or None
        try:
            async with asyncio.timeout(within):
                await self._serve()
        except CallFailed as e:
            await self._fail(e)
        except TimeoutError:
            text = "the caller's time is over"
            await self._fail(CallFailed(Reason.DEADLINE, text, was_sent=self._was_sent))

    async def _fail(self, error: CallFailed) -> None:
        self.outcome = error.reason
        frame = self.frame
        await self._member.answers.send(
            Failed(id=frame.id, reason=error.reason, message=error.message, was_sent=error.was_sent)
        )

    async def _serve(self) -> None:
        self._admit()
        body = await self._collect_body()
        response = await self._send(body)
        try:
            await self._pass_on(response)
        except BrokenOff as e:
            text = f"the answer of the API server broke off: {e}"
            raise CallFailed(Reason.UNREACHABLE, text, was_sent=True) from e
        finally:
            response.release()

    def _admit(self) -> None:
        """Ask the policy.

        Raises:
            CallFailed: the request is unclear, or not allowed.
        """
        frame = self.frame
        texts = (frame.accept, frame.content_type, frame.if_none_match, frame.user_agent)
        if not all(text.isprintable() for text in (*texts, frame.as_user)):
            raise CallFailed(Reason.MALFORMED, "a header has characters that none may have")
        try:
            self.attributes = read_attributes(frame.method, frame.path, frame.query)
        except UnclearRequest as e:
            raise CallFailed(Reason.MALFORMED, str(e)) from e
        requested_attributes = [self.attributes]
        if frame.as_user:
            requested_attributes.append(impersonation(frame.as_user))
        for attributes in requested_attributes:
            if problem := self._member.policy.problem(attributes):
                raise CallFailed(Reason.DENIED, problem)

    # --- the request ----------------------------------------------------------------------------

    async def _collect_body(self) -> bytes | None:
        """The whole body, so that a caller that vanishes leaves no half request.

        Raises:
            CallFailed: it is too large, or a part was lost.
        """
        if self._has_body:
            return self.frame.body
        limit = self._member.max_request_bytes
        granted = self._body_size
        with self._member.budget.taking() as take:
            while not self._has_body:
                take(self._body_size)
                if granted - self._body_size < _UPLOAD_WINDOW // 2:
                    granted += _UPLOAD_WINDOW
                    self._tell_credit(_UPLOAD_WINDOW)
                await self._change()
                if self._failure is not None:
                    raise self._failure
                if self._body_size > min(limit, granted):
                    raise CallFailed(Reason.MALFORMED, f"the request is over {limit} bytes")
            return b"".join(self._parts)

    def _tell_credit(self, size: int) -> None:
        self.sent_at = time.monotonic()
        instance = self._member.instance
        self._member.answers.tell(Credit(id=self.frame.id, bytes=size, instance=instance))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _send(self, body: bytes | None) -> HttpResponse:
        frame = self.frame
        call = Call(
            frame.method,
            frame.path,
            frame.query,
            body,
            frame.content_type,
            frame.accept,
            etag=frame.if_none_match,
            user_agent=frame.user_agent,
        )
        idle = timedelta(milliseconds=frame.idle) if frame.idle else None
        if body:
            metrics.BYTES.labels(metrics.REQUESTS).inc(len(body))
        self._was_sent = True
        try:
            with acting_as(frame.as_user):
                return await self._member.server.send(call, Limits(idle=idle), frame.uid)
        except NotAccepted as e:
            raise CallFailed(Reason.ANOTHER_CLUSTER, e.message) from e
        except KubeError as e:
            raise CallFailed(Reason.UNREACHABLE, e.message, was_sent=True) from e

    # --- the answer -----------------------------------------------------------------------------

    async def _pass_on(self, response: HttpResponse) -> None:
        self.outcome = str(response.status)
        seq = 0
        async with aclosing(self._pieces(response)) as pieces:
            async for data, more in pieces:
                frame = (
                    Body(id=self.frame.id, seq=seq, data=data, more=more)
                    if seq
                    else self._head(response, data, more=more)
                )
                await self._member.answers.send(frame)
                self.sent_at = time.monotonic()
                seq += 1
                self._credit -= len(data)
                self.passed_on += len(data)

    def _head(self, response: HttpResponse, data: bytes, *, more: bool) -> Head:
        values = {name: response.headers.get(name, "") for name in ANSWER_HEADERS}
        return Head(
            id=self.frame.id,
            instance=self._member.instance,
            status=response.status,
            headers={name: value[:_LONGEST_HEADER] for name, value in values.items() if value},
            data=data,
            more=more,
        )

    async def _pieces(self, response: HttpResponse) -> AsyncGenerator[tuple[bytes, bool]]:
        """The body in pieces that the caller takes, each with whether another follows."""
        if self.is_watch:
            yield b"", True  # that it is open is news; other answers are nothing without a body
        async for data in response.chunks():
            is_end = response.is_complete
            at = 0
            while at < len(data):
                piece = data[at : at + await self._room()]
                at += len(piece)
                yield piece, not is_end or at < len(data)
            if is_end:
                return
        yield b"", False

    async def _room(self) -> int:
        """Wait until the caller takes something; return how much may be sent at a time."""
        while not self._credit:
            await self._change()
        return min(self._credit, self._member.answers.piece_bytes)

    @property
    def is_watch(self) -> bool:
        """Whether the answer goes on for as long as the caller likes."""
        return self.attributes is not None and self.attributes.verb == "watch"
