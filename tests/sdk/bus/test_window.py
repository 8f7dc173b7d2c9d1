"""Pipelined publishing: rules B4, B6, B14, W14."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_stream, stream_info
from fleetbus.bus.window import Window, open_window
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from support.eventually import eventually, never, stays

SUBJECT = "fleetbus.events.eu1.core.pods.default.a.added"


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        yield client


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncGenerator[NatsServer]:
    async with nats_server(store_dir=tmp_path) as server:
        yield server


def ignore(_: Ack) -> None:
    """For messages whose fate does not matter."""


async def test_each_message_is_acknowledged_exactly_once(bus: Bus):
    await ensure_stream(bus)
    acks: list[Ack] = []
    async with open_window(bus, messages=50) as window:
        for number in range(500):
            await window.publish(SUBJECT, b"x", {"Nats-Msg-Id": f"{number}"}, acks.append)
            assert window.in_flight <= 50
        assert await window.drain(timedelta(seconds=5))
        assert (window.in_flight, window.size) == (0, 0)
    assert sorted(ack.seq for ack in acks) == list(range(1, 501))


async def test_a_repeat_inside_the_window_is_stored_once(bus: Bus):
    await ensure_stream(bus)
    async with open_window(bus) as window:
        first = await window.send(SUBJECT, b"x", {"Nats-Msg-Id": "1"})
        second = await window.send(SUBJECT, b"x", {"Nats-Msg-Id": "1"})
    assert (first.seq, first.duplicate) == (1, False)
    assert (second.seq, second.duplicate, second.error) == (1, True, None)


async def test_b10_headers_arrive_as_they_were_given(bus: Bus):
    await ensure_stream(bus)
    headers = {"Nats-Msg-Id": "1", "ce-id": "1", "ce-subject": "a%20b", "traceparent": "00-a-b-01"}
    received: list[dict[str, str] | None] = []

    async def on_message(message: Msg) -> None:
        received.append(message.headers)

    await bus.nc.subscribe(SUBJECT, cb=on_message)
    async with open_window(bus) as window:
        await window.send(SUBJECT, b"x", headers)
        await eventually(lambda: received)
        assert received == [headers]
        for bad in ("a\r\nb: c", "a\nb", "a\r", "\xe9"):
            with pytest.raises(ValueError, match="not plain ASCII"):
                await window.send(SUBJECT, b"x", headers | {"ce-subject": bad})
        assert window.in_flight == 0


async def test_w14_the_window_is_bounded_by_bytes_too(bus: Bus):
    await ensure_stream(bus)
    most = 0
    async with open_window(bus, size=100_000) as window:
        for number in range(50):
            body = b"x" * 30_000
            await window.publish(SUBJECT, body, {"Nats-Msg-Id": f"{number}"}, ignore)
            most = max(most, window.size)
        # One that is larger than the whole window still goes, alone.
        ack = await window.send(SUBJECT, b"x" * 200_000, {"Nats-Msg-Id": "large"})
    assert most <= 100_000
    assert ack.error is None


async def test_b15_a_message_for_a_missing_stream_is_stored_once_the_stream_is_there(bus: Bus):
    async with open_window(bus) as window:
        sending = asyncio.create_task(window.send(SUBJECT, b"x", {"Nats-Msg-Id": "1"}))
        await eventually(lambda: window.in_flight == 1)
        await ensure_stream(bus)
        assert (await sending).seq == 1


async def test_b15_a_refused_message_is_sent_again_soon_and_then_ever_more_seldom(bus: Bus):
    sent: list[float] = []

    async def refuse(message: Msg) -> None:
        sent.append(asyncio.get_running_loop().time())
        await message.respond(b"")  # as NATS itself does when there is no stream

    await bus.nc.subscribe(SUBJECT, cb=refuse)
    async with open_window(bus) as window:
        await window.publish(SUBJECT, b"x", {"Nats-Msg-Id": "1"}, ignore)
        await eventually(lambda: len(sent) == 4)
    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert all(pause > least for pause, least in zip(pauses, (0.04, 0.09, 0.19), strict=True))


async def test_b4_a_message_without_an_answer_is_given_up_in_time(bus: Bus):
    async with open_window(bus, patience=timedelta(seconds=0.2)) as window:
        ack = await window.send(SUBJECT, b"x", {"Nats-Msg-Id": "1"})
        assert ack.error is not None
        assert window.in_flight == 0


async def test_b4_messages_that_nobody_acknowledges_are_reported_once(bus: Bus):
    with capture_logs() as logs:
        async with open_window(bus, deadline=timedelta(seconds=0.1)) as window:
            await window.publish(SUBJECT, b"x", {"Nats-Msg-Id": "1"}, ignore)
            await window.publish(SUBJECT, b"x", {"Nats-Msg-Id": "2"}, ignore)

            def warnings() -> list[int]:
                lines = [line for line in logs if line["event"] == "publishes_unanswered"]
                return [line["count"] for line in lines]

            await eventually(warnings)
            await stays([2], warnings, timedelta(seconds=0.3))


async def test_a_wrong_expectation_is_settled_at_once(bus: Bus):
    await ensure_stream(bus)
    async with open_window(bus) as window:
        ack = await window.send(
            SUBJECT, b"x", {"Nats-Msg-Id": "1", "Nats-Expected-Last-Subject-Sequence": "7"}
        )
    assert ack.error is not None
    assert ack.error.err_code == 10071


async def test_b6_what_was_in_flight_when_the_server_died_is_stored_exactly_once(
    own_server: NatsServer,
):
    async with connected(own_server.url, name="t") as bus, open_window(bus) as window:
        await ensure_stream(bus)
        acks: list[Ack] = []
        publishing = asyncio.create_task(_publish(window, acks, 3000))
        await eventually(lambda: len(acks) > 200)
        own_server.kill()
        await asyncio.sleep(0.1)  # it is away for a while
        await own_server.restart()
        await asyncio.wait_for(publishing, 20)
        assert await window.drain(timedelta(seconds=20))
        info = await stream_info(bus)
    assert info is not None
    assert info["state"]["messages"] == 3000
    assert len(acks) == 3000
    assert all(ack.error is None for ack in acks)


async def test_b13_a_publisher_whose_server_is_away_waits_and_fills_no_buffer(
    own_server: NatsServer,
):
    async with connected(own_server.url, name="t") as bus, open_window(bus, size=10**6) as window:
        await ensure_stream(bus)
        acks: list[Ack] = []
        own_server.kill()
        publishers = [  # ten times what nats-py would take; those that are too early hit its limit
            asyncio.create_task(_publish_as(window, acks, f"p{number}")) for number in range(4)
        ]
        await eventually(lambda: not bus.is_connected)
        await never(lambda: any(task.done() for task in publishers), timedelta(seconds=0.2))
        assert bus.nc.pending_data_size <= 2 * 1024**2
        assert window.size <= 10**6
        await own_server.restart()
        await asyncio.wait_for(asyncio.gather(*publishers), 20)
        assert await window.drain(timedelta(seconds=20))
        info = await stream_info(bus)
    assert info is not None
    assert info["state"]["messages"] == len(acks) == 4 * 50
    assert all(ack.error is None for ack in acks)


async def test_b14_a_stalled_server_stops_the_publisher_and_the_publisher_can_be_stopped(
    own_server: NatsServer,
):
    async with connected(own_server.url, name="t") as bus, open_window(bus) as window:
        await ensure_stream(bus)
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            acks: list[Ack] = []
            publishing = asyncio.create_task(_publish(window, acks, 10**6, b"x" * 10_000))
            await _settled(window)
            publishing.cancel()
            done, _ = await asyncio.wait([publishing], timeout=5)
            assert done == {publishing}
            assert publishing.cancelled()
        finally:
            own_server.process.send_signal(signal.SIGCONT)
        assert await window.drain(timedelta(seconds=20))
        assert len(acks) > 100


async def test_a_task_that_cleans_up_after_its_cancellation_may_publish(bus: Bus):
    await ensure_stream(bus)
    async with open_window(bus) as window:

        async def work() -> Ack:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await window.send(SUBJECT, b"x", {"Nats-Msg-Id": "last"})
            raise AssertionError

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        assert (await task).seq == 1


async def _settled(window: Window) -> None:
    """Wait until nothing more goes into the window."""
    before = -1
    while before != window.in_flight or not before:
        before = window.in_flight
        await asyncio.sleep(0.2)  # time for another message


async def _publish(window: Window, acks: list[Ack], count: int, body: bytes = b"x") -> None:
    for number in range(count):
        await window.publish(SUBJECT, body, {"Nats-Msg-Id": f"{number}"}, acks.append)


async def _publish_as(window: Window, acks: list[Ack], name: str) -> None:
    for number in range(50):
        reported = {"Nats-Msg-Id": f"{name}-{number}"}
        await window.publish(SUBJECT, b"x" * 100_000, reported, acks.append)
