"""The calls of one process through agents: one subscription for the answers to all of them."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleetbus.agent_calls.pending import NOT_CONNECTED, PendingCall, Times
from fleetbus.bus.connection import Bus
from fleetbus.errors import Unreachable
from fleetbus.kube.connection.response import BrokenOff, Limits
from fleetbus_proto.calls import Frame, Open, decode_to_caller, encode_frame
from fleetbus_proto.errors import InvalidName, MalformedMessage
from fleetbus_proto.subjects import (
    EVERY_AGENT,
    answers_filter,
    answers_subject,
    api_subject,
    parse_answers_subject,
)

log = structlog.get_logger()

_NO_RESPONDERS: Final = "503"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_USUAL: Final = Times()


class AgentCalls:
    """The calls of this process through agents; created by `agent_calls`.

    Attributes:
        component: the name of the process, for the logs of agents.
    """

    def __init__(self, bus: Bus, component: str, *, times: Times = _USUAL) -> None:
        self.component = component
        self.caller = f"{_name_of(component)}.{secrets.token_hex(4)}"
        self._bus = bus
        self._times = times
        self._calls: dict[str, PendingCall] = {}
        self._last = 0
        self._starting = asyncio.Lock()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Subscribe to the answers, unless that is done."""
        if self._subscription is None:
            async with self._starting:
                if self._subscription is None:
                    subject = answers_filter(self.caller)
                    self._subscription = await self._bus.nc.subscribe(subject, cb=self.take)

    async def aclose(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    @property
    def count(self) -> int:
        """The number of open calls."""
        return len(self._calls)

    def open(
        self, cluster: str, make: Callable[[str], Open], limits: Limits, body: bytes | None
    ) -> PendingCall:
        """Send a request to an agent of a cluster; after `start`.

        Args:
            cluster: its name.
            make: makes the frame of a call with this id.
            limits: its time limits.
            body: the whole body of the request.

        Raises:
            Unreachable: there is no connection to NATS; nothing was sent.
            MalformedMessage: the frame is too large, or has a string that is no Unicode.
        """
        call_id = self._next_id()
        frame = encode_frame(make(call_id))
        reply = answers_subject(cluster, call_id)
        if len(frame) > self._bus.max_payload:
            limit = self._bus.max_payload
            raise MalformedMessage(f"a request of {len(frame)} bytes is over NATS' limit, {limit}")
        if not self._bus.publish_directly(api_subject(cluster), frame, reply=reply):
            why = self._bus.trouble() or "the connection ends"
            raise Unreachable(0, "Unreachable", f"no connection to NATS: {why}")
        pending = PendingCall(
            call_id,
            cluster,
            limits,
            body=body,
            send=self._send,
            forget=self._remove,
            times=self._times,
        )
        self._calls[call_id] = pending
        return pending

    def _next_id(self) -> str:
        self._last += 1
        number, digits = self._last, ""
        while number:
            number, digit = divmod(number, len(_DIGITS))
            digits = _DIGITS[digit] + digits
        return f"{self.caller}.{digits}"

    def _send(self, call: PendingCall, frame: Frame) -> bool:
        subject = api_subject(call.cluster, call.instance or EVERY_AGENT)
        return self._bus.publish_directly(subject, encode_frame(frame))

    def _remove(self, call: PendingCall) -> None:
        self._calls.pop(call.id, None)

    async def take(self, message: Msg) -> None:
        """Hand a frame to its call; answers to calls that have ended are dropped."""
        try:
            cluster, call_id = parse_answers_subject(message.subject)
        except InvalidName:
            return
        call = self._calls.get(call_id)
        if call is None or call.cluster != cluster:
            return  # late; or another cluster's agent, which only guesses ids
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            text = "no agent of the cluster is connected to NATS"
            call.fail(Unreachable(0, NOT_CONNECTED, text))
            return
        try:
            frame = decode_to_caller(message.data)
        except MalformedMessage as e:
            log.warning("agent_frame_refused", cluster=cluster, error=str(e))
            call.cancel(f"the agent of the cluster sent what is no frame: {e}")
            return
        if frame.id == call_id:
            call.feed(frame)

    def fail_all(self) -> None:
        """End all calls: their answers were lost with the connection."""
        for call in list(self._calls.values()):
            call.fail(BrokenOff("the connection to NATS was lost; it may have been done"))


@asynccontextmanager
async def agent_calls(
    bus: Bus, component: str, *, times: Times = _USUAL
) -> AsyncGenerator[AgentCalls]:
    """Call API servers through agents for the duration of the block.

    Nothing is subscribed to before the first call: most fleets have no agents, and a user of NATS
    without the right to call them must not be refused.

    Args:
        bus: the connection to NATS.
        component: the name of the process, like `distributor`.
        times: how long a silence may last.
    """
    calls = AgentCalls(bus, component, times=times)
    stop = bus.on_disconnect(calls.fail_all)
    try:
        yield calls
    finally:
        stop()
        calls.fail_all()
        await calls.aclose()


def _name_of(component: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", component.lower()).strip("-")[:60] or "process"
