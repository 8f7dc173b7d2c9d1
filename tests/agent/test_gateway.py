"""The gateway against callers that break the rules of frames; nothing that arrives crashes it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.aio.msg import Msg

from fleetbus.bus.connection import subscribed
from fleetbus_agent.gateway import Times
from fleetbus_emulator.apiserver import Cluster, Hang
from fleetbus_proto.calls import (
    CHUNK_BYTES,
    MAX_CREDIT_BYTES,
    AskedBy,
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
    decode_to_caller,
    encode_frame,
)
from fleetbus_proto.subjects import answers_filter, api_subject
from support.eventually import eventually, never
from support.hostile.chaos_proxy import chaos_link
from support.objects import config_map
from support.rigs.agents import OneAgent, one_agent
from support.wire.frames import TO_AGENT

MAPS = "v1/configmaps"
PATH = "/api/v1/namespaces/default/configmaps"
CALLER = "raw.1"


class RawCaller:
    """Sends any frame, and keeps what comes back."""

    def __init__(self, rig: OneAgent) -> None:
        self._rig = rig
        self.frames: dict[str, list[FrameToCaller]] = {}

    async def take(self, message: Msg) -> None:
        if message.headers is None:
            frame = decode_to_caller(message.data)
            self.frames.setdefault(frame.id, []).append(frame)

    def send(self, frame: Frame | bytes, instance: str = "") -> None:
        body = frame if isinstance(frame, bytes) else encode_frame(frame)
        self._rig.rig.bus.publish_directly(api_subject("eu1", instance), body)

    def of(self, number: int) -> list[FrameToCaller]:
        return self.frames.get(f"{CALLER}.{number}", [])

    def size(self, number: int) -> int:
        return sum(len(frame.data) for frame in self.of(number) if isinstance(frame, Head | Body))

    async def failure(self, number: int) -> Failed:
        await eventually(lambda: any(isinstance(frame, Failed) for frame in self.of(number)))
        (failed,) = [frame for frame in self.of(number) if isinstance(frame, Failed)]
        return failed

    async def head(self, number: int) -> Head:
        await eventually(lambda: any(isinstance(frame, Head) for frame in self.of(number)))
        return next(frame for frame in self.of(number) if isinstance(frame, Head))

    async def is_served_from(self, first: int) -> None:
        """Wait until the agent takes a call of those with numbers from this one on."""
        numbers = itertools.count(first)

        def is_taken() -> bool:
            last = next(numbers)
            self.send(opened(last))
            return any(isinstance(frame, Head) for n in range(first, last) for frame in self.of(n))

        await eventually(is_taken)

    def instance(self, number: int) -> str:
        (frame, *_) = [f for f in self.of(number) if isinstance(f, Head | Working | Credit)]
        return frame.instance


@asynccontextmanager
async def raw_caller(rig: OneAgent) -> AsyncGenerator[RawCaller]:
    caller = RawCaller(rig)
    async with subscribed(rig.rig.bus, answers_filter(CALLER), caller.take):
        yield caller


def opened(number: int, path: str = PATH, **fields: object) -> Open:
    return Open(id=f"{CALLER}.{number}", method="GET", path=path, **fields)  # pyright: ignore[reportArgumentType]


def changed(frame: Frame, **fields: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(encode_frame(frame)) | fields)


# --- credit -------------------------------------------------------------------------------------


async def test_without_credit_an_answer_waits_and_the_caller_learns_that(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        rig.cluster.create(MAPS, config_map("a"), "default")
        caller.send(opened(1, credit=0))
        await eventually(lambda: len(caller.of(1)) >= 2)
        assert all(isinstance(frame, Working) for frame in caller.of(1))
        instance = caller.instance(1)
        for granted in (1, 2, 100):
            before = caller.size(1)
            caller.send(Credit(id=f"{CALLER}.1", bytes=granted), instance)
            await eventually(lambda: caller.size(1) == before + granted)  # noqa: B023
        caller.send(Credit(id=f"{CALLER}.1", bytes=10**6), instance)
        await eventually(lambda: not getattr(caller.of(1)[-1], "more", True))
        parts = [frame.data for frame in caller.of(1) if isinstance(frame, Head | Body)]
        assert json.loads(b"".join(parts))["items"][0]["metadata"]["name"] == "a"
        assert [frame.seq for frame in caller.of(1) if isinstance(frame, Body)] == [1, 2, 3]


@pytest.mark.slow
async def test_credit_that_is_never_granted_ends_with_the_silence_of_the_caller(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        rig.cluster.create(MAPS, config_map("a"), "default")
        caller.send(opened(1, credit=0))
        await eventually(lambda: caller.of(1))
        for _ in range(8):  # it still waits
            caller.send(Credit(id=f"{CALLER}.1"), caller.instance(1))
            before = len(caller.of(1))
            await eventually(lambda: len(caller.of(1)) > before)  # noqa: B023
        await eventually(lambda: is_quiet(caller), timedelta(seconds=10))
        assert caller.size(1) == 0


async def is_quiet(caller: RawCaller) -> bool:
    before = len(caller.of(1))
    try:
        await never(lambda: len(caller.of(1)) > before, timedelta(seconds=0.5))
    except AssertionError:
        return False
    return True


@pytest.mark.slow
async def test_no_credit_is_worth_more_than_the_limit(nats_url: str, tmp_path: Path):
    cluster = Cluster("eu1")
    for number in range(25):
        text = base64.b64encode(random.Random(number).randbytes(700_000)).decode()  # packs badly
        cluster.create(MAPS, config_map(f"m{number}") | {"data": {"k": text}}, "default")
    async with one_agent(nats_url, tmp_path, cluster) as rig, raw_caller(rig) as caller:
        caller.send(opened(1, credit=2**50))
        await eventually(lambda: still_waits(caller) and caller.size(1) >= MAX_CREDIT_BYTES)
        await never(lambda: caller.size(1) > MAX_CREDIT_BYTES, timedelta(seconds=0.3))


def still_waits(caller: RawCaller) -> bool:
    caller.send(Credit(id=f"{CALLER}.1"), "every-agent")
    return True


# --- frames that are none -----------------------------------------------------------------------


async def test_a_frame_of_a_later_version_is_answered(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        caller.send(changed(opened(1), type="open.v2"))
        assert (await caller.failure(1)).reason == Reason.VERSION
        caller.send(changed(opened(2), query=["a"]))
        failed = await caller.failure(2)
        assert (failed.reason, failed.was_sent) == (Reason.MALFORMED, False)
        caller.send(changed(opened(3), body=bytes(CHUNK_BYTES + 1)))
        assert (await caller.failure(3)).reason == Reason.MALFORMED
        caller.send(b"\xc1")
        caller.send(bytes(900_000))
        caller.send(Cancel(id=f"{CALLER}.9"))
        caller.send(changed(opened(4), id="raw-1.4.>"))
        caller.send(opened(5))
        assert (await caller.head(5)).status == 200
        assert set(caller.frames) == {f"{CALLER}.{number}" for number in (1, 2, 3, 5, 9)}


async def test_a_gap_in_a_request_is_refused_and_never_sent(nats_url: str, tmp_path: Path):
    async with (
        one_agent(nats_url, tmp_path, max_request_bytes=2**20) as rig,
        raw_caller(rig) as caller,
    ):
        frame = opened(1, body=b"{", more=True)
        caller.send(msgspec.structs.replace(frame, method="POST"))
        await eventually(lambda: caller.of(1))
        caller.send(Body(id=frame.id, seq=2, data=b"}"), caller.instance(1))
        failed = await caller.failure(1)
        assert (failed.reason, failed.was_sent) == (Reason.MALFORMED, False)
        caller.send(opened(2, body=b"", more=True))
        await eventually(lambda: caller.of(2))
        for seq in range(1, 40):  # far more than it takes
            caller.send(
                Body(id=f"{CALLER}.2", seq=seq, data=bytes(CHUNK_BYTES), more=True),
                caller.instance(2),
            )
        assert (await caller.failure(2)).reason == Reason.MALFORMED
        assert not [request for request in rig.cluster.requests if request.verb == "create"]


async def test_headers_cannot_be_smuggled(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        for number, name in enumerate(("accept", "content_type", "user_agent", "as_user"), 1):
            caller.send(opened(number, **{name: "a\r\nImpersonate-User: admin"}))
            assert (await caller.failure(number)).reason == Reason.MALFORMED
        assert not [request for request in rig.cluster.requests if request.path == PATH]


async def test_a_repeated_call_runs_once_and_a_cancelled_one_not_at_all(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        hang = rig.cluster.faults.add(Hang(), resource="configmaps")
        for _ in range(3):
            caller.send(opened(1))
        caller.send(Cancel(id=f"{CALLER}.2"), "every-agent")  # overtakes its call
        caller.send(opened(2))
        await eventually(lambda: caller.of(1))
        assert hang.hits == 1
        caller.send(Cancel(id=f"{CALLER}.1"), "every-agent")
        await never(lambda: caller.of(2) or hang.hits > 1, timedelta(seconds=0.3))


async def test_r4_requests_that_waited_while_the_agent_was_stopped_are_refused(
    nats_url: str, tmp_path: Path
):
    times = Times(tick=0.05, stale_after=0.3)
    async with one_agent(nats_url, tmp_path, times=times) as rig, raw_caller(rig) as caller:
        caller.send(opened(1))
        # Not asyncio's: it stops the whole loop, as SIGSTOP does with a process.
        stop_the_loop(0.5)
        failed = await caller.failure(1)
        assert (failed.reason, failed.was_sent) == (Reason.STOPPED, False)
        await caller.is_served_from(2)


async def test_r4_requests_that_waited_in_a_connection_that_stood_still_are_refused(
    nats_url: str, tmp_path: Path
):
    """Whoever asked may be dead: then no cancellation follows, and others do its work by now."""
    times = Times(tick=0.05, stale_after=0.3)
    port = urlsplit(nats_url).port or 0
    async with (
        chaos_link(port) as link,
        one_agent(nats_url, tmp_path, times=times, agent_url=link.url) as rig,
        raw_caller(rig) as caller,
    ):
        link.hold(up=False)
        caller.send(opened(1, PATH))
        await asyncio.sleep(0.6)  # longer than a request may wait
        link.heal()
        failed = await caller.failure(1)
        assert (failed.reason, failed.was_sent) == (Reason.STOPPED, False)
        await caller.is_served_from(2)
        before = len(rig.cluster.requests)
        link.cut()
        await caller.is_served_from(100)
        assert len(rig.cluster.requests) > before


def stop_the_loop(seconds: float) -> None:
    import time  # noqa: PLC0415

    time.sleep(seconds)  # a process that is stopped does nothing either


async def test_each_call_is_one_line_of_the_log_with_who_asked(
    nats_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    async with one_agent(nats_url, tmp_path) as rig, raw_caller(rig) as caller:
        asked_by = AskedBy(component="distributor", controller="mcr", object="hub/shop/web")
        secret = opened(1, asked_by=asked_by, body=b'{"data": "c4nary"}')
        caller.send(msgspec.structs.replace(secret, method="POST"))
        await caller.head(1)
        await eventually(lambda: "verb=create" in capsys_text(capsys, lines))
    (line,) = [each for each in "".join(lines).splitlines() if "verb=create" in each]
    for part in (
        "component=distributor",
        "controller=mcr",
        "object=hub/shop/web",
        "core/configmaps",
    ):
        assert part in line
    assert "c4nary" not in "".join(lines)


lines: list[str] = []


def capsys_text(capsys: pytest.CaptureFixture[str], kept: list[str]) -> str:
    output = capsys.readouterr()
    kept.extend((output.out, output.err))
    return "".join(kept)


# --- at random ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(TO_AGENT | st.binary(max_size=100), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_sequence_of_frames_ends_the_agent(
    nats_process: object, tmp_path: Path, frames: list[Frame | bytes]
):
    async def story() -> None:
        url = str(nats_process.url)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        async with one_agent(url, tmp_path) as rig, raw_caller(rig) as caller:
            for frame in frames:
                for instance in ("", "every-agent"):
                    caller.send(frame, instance)
            caller.send(opened(10**6))
            await eventually(lambda: caller.of(10**6))
            assert not rig.agent.done()

    asyncio.run(story())
