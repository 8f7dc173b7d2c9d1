"""The gateway: takes calls from NATS, one task for each, and hands them the frames that follow."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import nats.errors
import structlog
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, subscribed
from fleetbus_agent import metrics
from fleetbus_agent.answers import Answers
from fleetbus_agent.call import AgentCall, Member
from fleetbus_agent.load import Load
from fleetbus_agent.member_server import MemberServer
from fleetbus_agent.settings import AgentSettings
from fleetbus_proto.calls import (
    SILENCE_MS,
    WORKING_EVERY_MS,
    Body,
    Cancel,
    Credit,
    Failed,
    Open,
    Reason,
    decode_to_agent,
    encode_frame,
    identify,
)
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.subjects import (
    AGENTS,
    EVERY_AGENT,
    answers_subject,
    api_subject,
    is_call_id,
)

_CANCELLED: Final = 256
"""Ids that are remembered, as a cancellation may overtake its call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a gateway, in seconds; the defaults are the usual ones."""

    tick: float = 1.0
    working_every: float = WORKING_EVERY_MS / 1000
    silence: float = SILENCE_MS / 1000
    stale_after: float = 8.0
    """Requests that may have waited for longer, for a process that was stopped or in a connection
    that stood still, are refused. Less than the lease of a run, 15 s: whoever asked may be dead,
    and afterwards another process works on the same objects (rule R4)."""
    drain: float = 120.0
    """The open calls of a gateway that was retired have this long to end. A single request may take
    30 s; longer are large lists, and watches, which their callers open again."""


USUAL: Final = Times()


class Gateway:
    """Serves the calls to one API server.

    Args:
        bus: the connection to NATS.
        settings: the name of the cluster, the policy and the limits.
        server: the API server.
        load: the calls of this process, over all of its connections.
        beat: called while the gateway works.
        times: its times.

    Attributes:
        serving: set once calls are taken.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        settings: AgentSettings,
        server: MemberServer,
        load: Load,
        beat: Callable[[], None],
        times: Times = USUAL,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self._bus = bus
        self._cluster = settings.cluster
        self._load = load
        self._patience = settings.stop_patience
        self._beat = beat
        self._times = times
        self._log = structlog.get_logger().bind()  # without looking up the configuration each time
        self._member = Member(
            instance=self.instance,
            server=server,
            policy=settings.policy,
            answers=Answers(bus, settings.cluster),
            budget=load.bodies,
            max_request_bytes=settings.max_request_bytes,
        )
        self._calls: dict[str, AgentCall] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self.serving = asyncio.Event()
        self._retired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        # What arrives now was sent by the server after that.
        self._sent_since = time.monotonic()

    def trouble(self) -> str:
        """Why it takes no calls; empty if it does."""
        return "" if self.serving.is_set() else "calls are not taken yet"

    def retire(self) -> None:
        """Take no more calls, and end with the open ones; another gateway has taken over."""
        if not self._retired.done():
            self._retired.set_result(None)

    async def run(self) -> None:
        """Serve until retired or cancelled; then take no more calls, and let the open ones end.

        Once cancelled they have the setting `stop_patience` for that. Those that do not end are
        reported to their callers as stopped.
        """
        loops = [
            asyncio.create_task(self._tick_for_ever(), name="agent-ticks"),
            asyncio.create_task(self._follow_connection(), name="agent-connection"),
        ]
        stop = self._bus.on_reconnect(self._trust_connection)
        try:
            async with AsyncExitStack() as exits:
                exits.push_async_callback(self._end_calls)
                for instance in (self.instance, EVERY_AGENT):
                    subject = api_subject(self._cluster, instance)
                    await exits.enter_async_context(
                        subscribed(self._bus, subject, self._take_following)
                    )
                exits.push_async_callback(self._wait_calls, self._patience.total_seconds())
                async with self._taking_calls():
                    # The loops go on during a stop: callers must not take it for silence.
                    waiting = [*loops, self._retired]
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for ended in done:
                        await ended  # raises, if it is a loop
                await self._wait_calls(self._times.drain)
        finally:
            stop()
            for loop in loops:
                loop.cancel()

    @asynccontextmanager
    async def _taking_calls(self) -> AsyncGenerator[None]:
        subscription = await self._bus.nc.subscribe(
            api_subject(self._cluster), queue=AGENTS, cb=self._take_call
        )
        try:
            with suppress(nats.errors.Error):  # nats-py repeats it when the bus is back
                await self._bus.nc.flush()
            self.serving.set()
            yield
        finally:
            self._is_stopping = not self._retired.done()
            if self._bus.is_connected:
                with suppress(nats.errors.Error):  # the connection is lost meanwhile
                    await subscription.drain()

    async def _wait_calls(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left)

    async def _end_calls(self) -> None:
        tasks = list(self._tasks.values())
        for call in self._calls.values():
            call.tell_stopped()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- frames ---------------------------------------------------------------------------------

    async def _take_call(self, message: Msg) -> None:
        try:
            frame = decode_to_agent(message.data)
        except MalformedMessage as e:
            self._refuse_frame(message, e)
            return
        if not isinstance(frame, Open) or not is_call_id(frame.id):
            self._refuse_frame(message, MalformedMessage("only open.v1 begins a call"))
        elif frame.id in self._calls:
            pass  # sent twice by somebody
        elif self._cancelled.pop(frame.id, self) is None:
            pass  # its cancellation has overtaken it
        elif reason := self._why_not():
            self._tell_failure(frame.id, *reason)
        else:
            self._begin(frame)

    def _why_not(self) -> tuple[Reason, str] | None:
        if time.monotonic() > self._sent_since + self._times.stale_after:
            return Reason.STOPPED, "the request may have waited too long on its way to the agent"
        if self._is_stopping:
            return Reason.STOPPED, "the agent is being stopped"
        if self._load.is_full:
            return Reason.OVERLOADED, f"the agent has {self._load.max_calls} calls already"
        return None

    async def _take_following(self, message: Msg) -> None:
        try:
            frame = decode_to_agent(message.data)
        except MalformedMessage as e:
            self._refuse_frame(message, e)
            return
        call = self._calls.get(frame.id)
        if isinstance(frame, Cancel):
            self._cancel(frame.id)
        elif call is None:
            pass  # it has ended
        elif isinstance(frame, Body):
            call.take_body(frame)
        elif isinstance(frame, Credit):
            call.take_credit(frame)

    def _refuse_frame(self, message: Msg, error: MalformedMessage) -> None:
        metrics.REFUSED_FRAMES.inc()
        call_id, kind = identify(message.data)
        self._log.warning("frame_refused", kind=kind[:100], error=str(error))
        if call_id:
            is_known = kind in ("open.v1", "body.v1", "credit.v1", "cancel.v1")
            reason = Reason.MALFORMED if is_known else Reason.VERSION
            self._tell_failure(call_id, reason, f"the agent cannot read the request: {error}")
            self._cancel(call_id)

    def _tell_failure(
        self, call_id: str, reason: Reason, text: str, *, was_sent: bool = False
    ) -> None:
        metrics.CALLS.labels("", reason).inc()
        failed = Failed(id=call_id, reason=reason, message=text, was_sent=was_sent)
        subject = answers_subject(self._cluster, call_id)
        self._bus.publish_directly(subject, encode_frame(failed))

    # --- calls ----------------------------------------------------------------------------------

    def _begin(self, frame: Open) -> None:
        call = AgentCall(frame, self._member)
        self._calls[frame.id] = call
        self._load.calls += 1
        metrics.OPEN_CALLS.inc()
        task = asyncio.create_task(self._serve(call), name=f"call {frame.id}")
        self._tasks[frame.id] = task
        # A task that is cancelled before its first step runs no `finally` of its own.
        task.add_done_callback(lambda _: self._end(call))

    async def _serve(self, call: AgentCall) -> None:
        try:
            await call.run()
        except Exception as e:  # noqa: BLE001 -- one call must not end the others
            call.outcome = "Error"
            self._log.exception("call_failed", id=call.frame.id)
            text = f"the agent failed: {type(e).__name__}"
            self._tell_failure(call.frame.id, Reason.UNREACHABLE, text, was_sent=True)

    def _end(self, call: AgentCall) -> None:
        del self._calls[call.frame.id], self._tasks[call.frame.id]
        self._load.calls -= 1
        metrics.OPEN_CALLS.dec()
        self._record(call)

    def _record(self, call: AgentCall) -> None:
        """One log line per call, for the owner of the cluster: who asked for what."""
        seconds = time.monotonic() - call.began_at
        attributes, asker = call.attributes, call.frame.asked_by
        verb = attributes.verb if attributes else ""
        outcome = f"{call.outcome[0]}xx" if call.outcome.isdigit() else call.outcome
        metrics.CALLS.labels(verb, outcome).inc()
        metrics.BYTES.labels(metrics.ANSWERS).inc(call.passed_on)
        if not call.is_watch:
            metrics.SECONDS.observe(seconds)
        self._log.info(
            "call",
            id=call.frame.id,
            component=asker.component,
            controller=asker.controller,
            object=asker.object,
            as_user=call.frame.as_user,
            verb=verb,
            resource=attributes.resource if attributes else call.frame.path[:200],
            namespace=attributes.namespace if attributes else "",
            name=attributes.name if attributes else "",
            outcome=call.outcome,
            bytes=call.passed_on,
            seconds=round(seconds, 4),
        )

    def _cancel(self, call_id: str) -> None:
        if task := self._tasks.get(call_id):
            task.cancel()
            return
        self._cancelled[call_id] = None
        if len(self._cancelled) > _CANCELLED:
            self._cancelled.popitem(last=False)

    # --- time -----------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> NoReturn:
        while True:
            self._tick()
            await asyncio.sleep(self._times.tick)

    def _tick(self) -> None:
        now = time.monotonic()
        self._beat()
        for call_id, call in list(self._calls.items()):
            if now > call.received_at + self._times.silence:
                self._log.warning("caller_is_silent", id=call_id)
                self._cancel(call_id)
            elif now > call.sent_at + self._times.working_every - self._times.tick:
                call.say_working()

    async def _follow_connection(self) -> NoReturn:
        """Learn how old what arrives may be: no older than the last ping that was answered."""
        within = timedelta(seconds=self._times.stale_after)
        while True:
            asked_at = time.monotonic()
            is_answered = await self._bus.ping(within)
            # What came before the answer is dealt with by then.
            await asyncio.sleep(self._times.tick)
            if is_answered:
                self._trust_since(asked_at)

    def _trust_since(self, sent_since: float) -> None:
        seconds = sent_since - self._sent_since
        if seconds > self._times.stale_after:
            self._log.warning("stood_still", seconds=round(seconds, 1))
        self._sent_since = max(self._sent_since, sent_since)

    def _trust_connection(self) -> None:
        """Nothing that was sent earlier arrives through a new connection."""
        self._sent_since = time.monotonic()
