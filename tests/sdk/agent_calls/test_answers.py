"""A caller against agents that break the rules of frames: an error that names the agent, no more.

The agents of this file are scripts that speak frames on a real NATS.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.aio.msg import Msg

from fleetbus import errors
from fleetbus.agent_calls.calls import AgentCalls, agent_calls
from fleetbus.agent_calls.pending import Times
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.response import BrokenOff, Idle, Limits, Response
from fleetbus.kube.requests import Call
from fleetbus.reconcile import Request
from fleetbus.run.current import Run, running
from fleetbus_proto.calls import (
    CHUNK_BYTES,
    WINDOW_BYTES,
    Body,
    Cancel,
    Credit,
    Failed,
    Frame,
    FrameToCaller,
    Head,
    Open,
    Reason,
    Working,
    decode_to_agent,
    encode_frame,
)
from fleetbus_proto.subjects import answers_subject
from support.eventually import eventually
from support.rows import each_row
from support.wire.frames import INSTANCE, TO_CALLER

QUICK = Times(silence=0.5, still_waiting=0.1)
Answer: TypeAlias = Callable[[Open], Sequence[FrameToCaller | bytes]]
"""The frames with which a scripted agent answers a request."""
GET = Call("GET", "/version")


@dataclass
class Script:
    """A caller, and an agent that answers each request as the test says."""

    client: KubeClient
    calls: AgentCalls
    bus: Bus
    answer: Answer = lambda _: ()
    frames: list[Frame] = field(default_factory=list[Frame])
    """Received by the agent."""

    async def take(self, message: Msg) -> None:
        frame = decode_to_agent(message.data)
        self.frames.append(frame)
        if isinstance(frame, Open):
            for each in self.answer(frame):
                self.send(frame.id, each)

    def send(self, call: str, frame: FrameToCaller | bytes, cluster: str = "eu1") -> None:
        body = frame if isinstance(frame, bytes) else encode_frame(frame)
        self.bus.publish_directly(answers_subject(cluster, call), body)

    def opened(self) -> Open:
        return next(frame for frame in self.frames if isinstance(frame, Open))

    def kinds(self, kind: type[Frame]) -> int:
        return sum(isinstance(frame, kind) for frame in self.frames)


@asynccontextmanager
async def script(nats_url: str, times: Times = QUICK) -> AsyncGenerator[Script]:
    async with (
        connected(nats_url, name="hub") as bus,
        connected(nats_url, name="agent") as other,
        agent_calls(bus, "test", times=times) as calls,
        client_through_agent(calls, "eu1") as client,
    ):
        scripted = Script(client, calls, other)
        async with (
            subscribed(other, "fleetbus.api.eu1", scripted.take),
            subscribed(other, "fleetbus.api.eu1.*", scripted.take),
        ):
            await other.nc.flush()
            yield scripted


def head(frame: Open, data: bytes = b"{}", *, more: bool = False, **fields: Any) -> Head:
    status = fields.pop("status", 200)
    return Head(id=frame.id, instance=INSTANCE, status=status, data=data, more=more, **fields)


def body(frame: Open, seq: int, data: bytes = b"", *, more: bool = False) -> Body:
    return Body(id=frame.id, seq=seq, data=data, more=more)


def changed(frame: Frame, **fields: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(encode_frame(frame)) | fields)


# --- what breaks a call -------------------------------------------------------------------------

HALF = b'{"gitVersion":'
BREAKS: list[tuple[str, Answer, str]] = [
    ("a gap", lambda o: (head(o, HALF, more=True), body(o, 2, b'"v1"}')), "lost a part"),
    (
        "a repetition",
        lambda o: (head(o, HALF, more=True), body(o, 1, b'"v', more=True), body(o, 1, b'1"}')),
        "lost a part",
    ),
    ("a body before the head", lambda o: (body(o, 1, b"{}"),), "before the head"),
    ("two heads", lambda o: (head(o, more=True), head(o)), "twice"),
    ("no frame", lambda _: (b"\xc1",), "what is no frame"),
    ("a later frame", lambda o: (changed(head(o), type="head.v2"),), "what is no frame"),
    ("an oversized frame", lambda o: (changed(head(o), data=bytes(300_000)),), "what is no frame"),
    ("an impossible status", lambda o: (changed(head(o), status=7),), "what is no frame"),
    ("silence", lambda _: (), "stopped answering"),
    ("silence after the head", lambda o: (head(o, HALF, more=True),), "stopped answering"),
    (
        "an unknown encoding",
        lambda o: (head(o, headers={"content-encoding": "br"}),),
        "packed as 'br'",
    ),
    (
        "no gzip",
        lambda o: (head(o, headers={"content-encoding": "gzip"}),),
        "cannot be unpacked",
    ),
    (
        "half of a gzip",
        lambda o: (head(o, gzip.compress(b"{}")[:-9], headers={"content-encoding": "gzip"}),),
        "ended before its time",
    ),
    (
        "more than a gzip",
        lambda o: (
            head(o, gzip.compress(b"{}"), more=True, headers={"content-encoding": "gzip"}),
            body(o, 1, b"x"),
        ),
        "goes on after its end",
    ),
    (
        "a failure after the head",
        lambda o: (
            head(o, HALF, more=True),
            Failed(id=o.id, reason=Reason.UNREACHABLE, message="it broke off"),
        ),
        "it broke off",
    ),
]


@each_row(("what", "answer", "text"), BREAKS)
async def test_an_answer_that_breaks_the_rules_is_unreachable_and_leaves_nothing(
    nats_url: str, what: str, answer: Answer, text: str
):
    del what
    async with script(nats_url) as scripted:
        scripted.answer = answer
        with pytest.raises(errors.Unreachable, match=text):
            await scripted.client.request(GET)
        assert not scripted.calls.count
        scripted.answer = lambda o: (head(o, b'{"a": 1}'),)
        assert await scripted.client.request(GET) == b'{"a": 1}'


@each_row(
    ("reason", "kind"),
    [
        (Reason.DENIED, errors.Forbidden),
        (Reason.MALFORMED, errors.Invalid),
        (Reason.OVERLOADED, errors.TooManyRequests),
        (Reason.ANOTHER_CLUSTER, errors.NotAccepted),
        (Reason.UNREACHABLE, errors.Unreachable),
        (Reason.DEADLINE, errors.Unreachable),
        (Reason.VERSION, errors.Unreachable),
        (Reason.STOPPED, errors.Unreachable),
        ("OfALaterRelease", errors.Unreachable),
    ],
)
async def test_each_reason_of_an_agent_has_its_error(
    nats_url: str, reason: str, kind: type[KubeError]
):
    async with script(nats_url) as scripted:
        scripted.answer = lambda o: (Failed(id=o.id, reason=reason, message="so it is"),)
        with pytest.raises(KubeError, match="so it is") as caught:
            await scripted.client.request(GET)
        assert type(caught.value) is kind


async def test_s7_a_body_that_unpacks_to_a_gigabyte_is_refused_at_the_limit(nats_url: str):
    packed = zlib.compressobj(wbits=31)
    bomb = b"".join(packed.compress(bytes(2**20)) for _ in range(64)) + packed.flush()
    pieces = [bomb[at : at + CHUNK_BYTES] for at in range(0, len(bomb), CHUNK_BYTES)]
    assert len(pieces) < 4
    async with script(nats_url) as scripted:
        scripted.answer = lambda o: (
            head(o, pieces[0], more=True, headers={"content-encoding": "gzip"}),
            *(body(o, n, each, more=True) for n, each in enumerate(pieces[1:], 1)),
        )
        with pytest.raises(errors.ServerError, match="larger than 16 MiB"):
            await scripted.client.request(GET)
        await eventually(lambda: scripted.kinds(Cancel))


async def test_s3_frames_of_other_clusters_and_for_other_calls_change_nothing(nats_url: str):
    async with script(nats_url, Times()) as scripted:
        asking = asyncio.create_task(scripted.client.request(GET))
        await eventually(lambda: scripted.frames)
        opened = scripted.opened()
        scripted.send(opened.id, head(opened, b'{"from": "us1"}'), cluster="us1")
        scripted.send(opened.id, changed(head(opened), id="other.1.1"))
        scripted.send("nobody.1.1", head(opened))
        scripted.send(opened.id, head(opened, b'{"from": "eu1"}'))
        assert json.loads(await asking) == {"from": "eu1"}
        for _ in range(3):  # late
            scripted.send(opened.id, head(opened))
            scripted.send(opened.id, b"\xc1")
        scripted.answer = lambda o: (head(o),)
        assert await scripted.client.request(GET) == b"{}"


# --- credit, time -------------------------------------------------------------------------------


async def test_credit_is_granted_as_the_answer_is_read(nats_url: str):
    async with script(nats_url, Times()) as scripted:
        scripted.answer = lambda o: (
            head(o, b"", more=True),
            *(body(o, n, bytes(CHUNK_BYTES), more=True) for n in range(1, 17)),
        )
        response = await scripted.client.stream("/api", limits=Limits())
        assert scripted.opened().credit == WINDOW_BYTES
        assert scripted.kinds(Credit) == 0
        chunks = response.chunks()
        for _ in range(9):
            await anext(chunks)
        await eventually(lambda: scripted.kinds(Credit) == 1)
        (credit,) = [frame for frame in scripted.frames if isinstance(frame, Credit)]
        assert credit.bytes == WINDOW_BYTES // 2
        response.close()
        with pytest.raises(BrokenOff):
            await anext(chunks)
        await eventually(lambda: scripted.kinds(Cancel) == 1)


async def test_more_than_was_asked_for_breaks_the_call(nats_url: str):
    async with script(nats_url, Times()) as scripted:
        scripted.answer = lambda o: (
            head(o, b"", more=True),
            *(body(o, n, bytes(CHUNK_BYTES), more=True) for n in range(1, 18)),
        )
        response = await scripted.client.stream("/api", limits=Limits())
        await eventually(lambda: scripted.kinds(Cancel) == 1)  # nothing was read
        with pytest.raises(BrokenOff, match="more of its answer than was asked for"):
            await drained(response)


async def drained(response: Response) -> list[bytes]:
    return [chunk async for chunk in response.chunks()]


@pytest.mark.slow
async def test_a_working_agent_is_waited_for_and_learns_that(nats_url: str):
    async with script(nats_url) as scripted:
        asking = asyncio.create_task(scripted.client.request(GET))
        await eventually(lambda: scripted.frames)
        opened = scripted.opened()
        for seconds in range(8):
            del seconds
            await asyncio.sleep(0.15)  # all together longer than a silence
            scripted.send(opened.id, Working(id=opened.id, instance=INSTANCE))
        assert scripted.kinds(Credit) >= 3
        scripted.send(opened.id, head(opened))
        assert await asking == b"{}"


async def test_data_that_does_not_come_ends_a_stream_as_idle_though_the_agent_works(nats_url: str):
    async with script(nats_url) as scripted:
        scripted.answer = lambda o: (head(o, b"x", more=True),)
        limits = Limits(idle=timedelta(seconds=0.6))
        response = await scripted.client.stream("/api", limits=limits)
        opened = scripted.opened()

        async def work() -> None:
            while True:
                scripted.send(opened.id, Working(id=opened.id, instance=INSTANCE))
                await asyncio.sleep(0.1)  # well within the idle limit

        working = asyncio.create_task(work())
        with pytest.raises(Idle):
            await drained(response)
        working.cancel()
        assert opened.idle == 600


async def test_r4_nothing_is_sent_for_a_run_whose_lease_is_lost(nats_url: str):
    async with script(nats_url) as scripted:
        run = Run(Request("c", "eu1", "ns", "a"), holds=lambda: False)
        with running(run), pytest.raises(errors.LeaseLostError):
            await scripted.client.request(Call("DELETE", "/api/v1/namespaces/a/pods/b"))
        assert not scripted.frames


async def test_a_run_is_named_to_the_agent(nats_url: str):
    async with script(nats_url) as scripted:
        scripted.answer = lambda o: (head(o),)
        with running(Run(Request("copier", "hub", "shop", "web"))):
            await scripted.client.request(GET)
        asked = scripted.opened().asked_by
        assert (asked.component, asked.controller, asked.object) == (
            "test",
            "copier",
            "hub/shop/web",
        )


# --- at random ----------------------------------------------------------------------------------


@given(st.lists(TO_CALLER | st.binary(max_size=100), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_sequence_of_frames_does_more_than_fail_its_call(
    nats_process: Any, frames: list[FrameToCaller | bytes]
):
    async def story() -> None:
        async with script(
            str(nats_process.url), Times(silence=0.05, still_waiting=0.02)
        ) as scripted:
            scripted.answer = lambda o: [
                frame if isinstance(frame, bytes) else msgspec.structs.replace(frame, id=o.id)
                for frame in frames
            ]
            with suppress(KubeError):
                await scripted.client.request(GET)
            assert not scripted.calls.count
            scripted.answer = lambda o: (head(o),)
            assert await scripted.client.request(GET) == b"{}"

    asyncio.run(story())
