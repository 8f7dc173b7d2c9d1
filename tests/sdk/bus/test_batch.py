"""Atomic batches in the publish window: rules B1, B3, B4, B6, B10, B12, W14, W15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.bus.acks import Ack
from fleetbus.bus.batch import Outgoing, Pace, PaceLimits
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import call_jetstream, ensure_stream, stream_info
from fleetbus.bus.window import Gathering, Window, open_window
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from support.eventually import eventually, never
from support.hostile.chaos_proxy import chaos_link
from support.servers.restricted_nats import restricted_server

SOON = timedelta(seconds=10)
LATE = timedelta(seconds=30)
"""A deadline for answers that no test waits for."""


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        await ensure_stream(client)
        yield client


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncGenerator[NatsServer]:
    async with nats_server(store_dir=tmp_path) as server:
        yield server


def subject(number: int) -> str:
    return f"fleetbus.events.eu1.core.pods.default.p{number}.listed"


def outgoing(numbers: Sequence[int], acks: list[Ack], body: bytes = b"x") -> list[Outgoing]:
    """Messages whose ids are their numbers."""
    return [
        Outgoing(subject(n), body, {"Nats-Msg-Id": f"{n}", "ce-id": f"{n}"}, acks.append)
        for n in numbers
    ]


async def ids(bus: Bus) -> list[str]:
    """The ids of all messages on the stream, in their order."""
    return [headers["Nats-Msg-Id"] for headers in await stored_headers(bus)]


async def stored_headers(bus: Bus) -> list[dict[str, str]]:
    """Those of all messages on the stream, in their order."""
    info = await stream_info(bus)
    assert info is not None
    stored: list[dict[str, str]] = []
    for seq in range(1, info["state"]["last_seq"] + 1):
        request = f'{{"seq":{seq}}}'.encode()
        message = await bus.request(f"$JS.API.DIRECT.GET.{STREAM}", request)
        stored.append(message.headers or {})
    return stored


async def count(bus: Bus) -> int:
    info = await stream_info(bus)
    assert info is not None
    return int(info["state"]["messages"])


def numbers(first: int, last: int) -> list[str]:
    return [f"{n}" for n in range(first, last + 1)]


# --- stored whole -----------------------------------------------------------------------------


async def test_b1_a_batch_is_stored_in_order_and_each_message_gets_its_sequence(bus: Bus):
    acks: list[Ack] = []
    async with open_window(bus) as window:
        await window.send(subject(0), b"x", {"Nats-Msg-Id": "0"})
        await window.publish_batch(outgoing(range(1, 21), acks))
        assert await window.drain(SOON)
        assert (window.in_flight, window.size) == (0, 0)
    assert [ack.seq for ack in acks] == list(range(2, 22))
    assert all(ack.error is None for ack in acks)
    assert await ids(bus) == numbers(0, 20)


async def test_b10_a_message_of_a_batch_keeps_its_headers_and_says_which_batch_it_was_in(bus: Bus):
    acks: list[Ack] = []
    async with open_window(bus) as window:
        await window.publish_batch(outgoing(range(1, 4), acks))
        assert await window.drain(SOON)
    heads = await stored_headers(bus)
    assert [(h["Nats-Msg-Id"], h["ce-id"]) for h in heads] == [("1", "1"), ("2", "2"), ("3", "3")]
    assert [h["Nats-Batch-Sequence"] for h in heads] == ["1", "2", "3"]
    assert len({h["Nats-Batch-Id"] for h in heads}) == 1


async def test_b10_a_batch_with_a_header_that_is_not_ascii_is_not_sent(bus: Bus):
    acks: list[Ack] = []
    good = outgoing([1], acks)[0]
    async with open_window(bus) as window:
        with pytest.raises(ValueError, match="not plain ASCII"):
            await window.publish_batch([good, good._replace(headers={"ce-id": "\xe9"})])
        assert (window.in_flight, window.size) == (0, 0)
    assert await count(bus) == 0


async def test_s3_a_watcher_s_rights_are_enough_for_a_batch(tmp_path: Path):
    acks: list[Ack] = []
    async with (
        restricted_server(tmp_path) as address,
        connected(f"nats://admin:p@{address}", name="own") as admin,
        connected(f"nats://w:p@{address}", name="watcher.eu1") as bus,
        open_window(bus) as window,
    ):
        await ensure_stream(admin)
        await window.publish_batch(outgoing(range(1, 11), acks))
        assert await window.drain(SOON)
        assert not bus.has_failed
    assert [ack.seq for ack in acks] == list(range(1, 11))


# --- in doubt: singly, with the same ids ------------------------------------------------------


async def test_b6_a_batch_with_one_known_id_is_refused_and_its_messages_are_stored_singly(bus: Bus):
    acks: list[Ack] = []
    async with open_window(bus, deadline=LATE) as window:
        await window.send(subject(7), b"x", {"Nats-Msg-Id": "7"})
        await window.publish_batch(outgoing(range(1, 21), acks))
        assert await window.drain(SOON)
    assert [ack.seq for ack in acks if ack.duplicate] == [1]
    assert len(acks) == 20
    assert all(ack.error is None for ack in acks)
    assert await ids(bus) == ["7", *numbers(1, 6), *numbers(8, 20)]


async def test_b6_a_batch_whose_commit_is_lost_is_sent_again_singly(own_server: NatsServer):
    acks: list[Ack] = []
    async with chaos_link(port_of(own_server)) as link, connected(link.url, name="t") as bus:
        await ensure_stream(bus)
        async with open_window(bus, deadline=timedelta(seconds=0.2)) as window:
            link.loses = lambda reported: reported == subject(20) and link.lost == 0
            await window.publish_batch(outgoing(range(1, 21), acks))
            assert await window.drain(SOON)
        assert await ids(bus) == numbers(1, 20)
    assert link.lost == 1
    assert len(acks) == 20


async def test_b6_a_batch_whose_acknowledgement_is_lost_is_not_stored_twice(
    own_server: NatsServer,
):
    acks: list[Ack] = []
    async with (
        connected(own_server.url, name="own") as owner,
        chaos_link(port_of(own_server)) as link,
        connected(link.url, name="t") as bus,
        open_window(bus) as window,
    ):
        await ensure_stream(owner)
        link.hold(up=False)
        await window.publish_batch(outgoing(range(1, 21), acks))
        await eventually(lambda: has(owner, 20))
        assert acks == []
        link.cut()
        link.heal()
        assert await window.drain(SOON)
        assert await ids(owner) == numbers(1, 20)
    assert [(ack.seq, ack.duplicate) for ack in acks] == [(n, True) for n in range(1, 21)]


async def test_b6_a_server_that_restarts_between_begin_and_commit_has_everything_once(
    own_server: NatsServer,
):
    acks: list[Ack] = []
    async with chaos_link(port_of(own_server)) as link, connected(link.url, name="t") as bus:
        await ensure_stream(bus)
        async with open_window(bus, deadline=LATE) as window:
            link.loses = lambda reported: reported == subject(20)
            await window.publish_batch(outgoing(range(1, 21), acks))
            await eventually(lambda: link.lost)
            assert await count(bus) == 0
            own_server.kill()
            link.heal()
            await own_server.restart()
            assert await window.drain(SOON)
        assert await ids(bus) == numbers(1, 20)
    assert all(ack.error is None for ack in acks)


async def test_b1_a_server_killed_amid_batches_has_everything_once(own_server: NatsServer):
    acks: list[Ack] = []
    async with connected(own_server.url, name="t") as bus, open_window(bus) as window:
        await ensure_stream(bus)

        async def publish() -> None:
            for first in range(0, 3000, 100):
                await window.publish_batch(outgoing(range(first, first + 100), acks, b"x" * 1000))

        publishing = asyncio.create_task(publish())
        await eventually(lambda: len(acks) >= 500)
        own_server.kill()
        await asyncio.sleep(0.05)  # it is away for a while
        await own_server.restart()
        await asyncio.wait_for(publishing, 20)
        assert await window.drain(timedelta(seconds=20))
        assert await count(bus) == 3000
    assert len(acks) == 3000
    assert all(ack.error is None for ack in acks)


async def test_b14_a_batch_that_is_cancelled_amid_its_sending_is_still_stored(
    own_server: NatsServer,
):
    acks: list[Ack] = []
    async with chaos_link(port_of(own_server)) as link, connected(link.url, name="t") as bus:
        await ensure_stream(bus)
        async with open_window(bus, deadline=LATE) as window:
            link.hold()
            body = b"x" * 60_000  # more than the buffers of nats-py and of the sockets take
            publishing = asyncio.create_task(
                window.publish_batch(outgoing(range(1, 201), acks, body))
            )
            await eventually(lambda: window.in_flight)
            publishing.cancel()
            await asyncio.wait([publishing])
            assert publishing.cancelled()
            assert window.in_flight == 200
            link.heal()
            assert await window.drain(timedelta(seconds=20))
        assert await count(bus) == 200
    assert len(acks) == 200


# --- several publishers -----------------------------------------------------------------------


async def test_w15_two_replicas_that_publish_the_same_in_batches_store_it_once(nats_url: str):
    fates: list[list[Ack]] = [[], []]
    async with connected(nats_url, name="one") as one, connected(nats_url, name="two") as two:
        await ensure_stream(one)

        async def publish(window: Window, acks: list[Ack]) -> None:
            for first in range(0, 600, 100):
                await window.publish_batch(outgoing(range(first, first + 100), acks))

        async with open_window(one) as here, open_window(two) as there:
            await asyncio.gather(publish(here, fates[0]), publish(there, fates[1]))
            assert await here.drain(SOON)
            assert await there.drain(SOON)
        assert sorted(await ids(one), key=int) == numbers(0, 599)
    assert [len(acks) for acks in fates] == [600, 600]
    assert all(ack.error is None for acks in fates for ack in acks)


async def test_w14_batches_and_messages_share_the_bounds_of_the_window_and_its_turns(bus: Bus):
    acks: list[Ack] = []
    most = [0, 0]

    def note(window: Window) -> None:
        most[:] = max(most[0], window.in_flight), max(most[1], window.size)

    async with open_window(bus, messages=100, size=100_000) as window:

        async def singly() -> None:
            for message in outgoing(range(2000), acks):
                await window.publish(*message)
                note(window)

        async def together() -> None:
            for first in range(10_000, 10_400, 50):
                await window.publish_batch(outgoing(range(first, first + 50), acks, b"y" * 500))
                note(window)
            assert len(acks) < 1900  # those that came one by one did not always go first

        await asyncio.gather(singly(), together())
        assert await window.drain(SOON)
    assert most[0] <= 100
    assert most[1] <= 100_000
    assert await count(bus) == len(acks) == 2400


async def test_a_publisher_that_stops_waiting_lets_the_next_one_go(bus: Bus):
    acks: list[Ack] = []
    async with open_window(bus, messages=10) as window:
        inbox = bus.nc.new_inbox()  # nobody answers there
        await bus.nc.subscribe(inbox)
        for _ in range(9):
            await window.publish(inbox, b"x", {"Nats-Msg-Id": "0"}, acks.append)
        large = asyncio.create_task(window.publish_batch(outgoing(range(1, 6), acks)))
        await asyncio.sleep(0)
        small = asyncio.create_task(window.publish(*outgoing([6], acks)[0]))
        await never(small.done)
        large.cancel()
        await eventually(lambda: [ack.seq for ack in acks] == [1])
        await asyncio.wait([large, small])


# --- servers that have none -------------------------------------------------------------------


async def test_b12_a_stream_without_batches_takes_the_messages_singly_and_it_is_reported_once(
    nats_url: str,
):
    acks: list[Ack] = []
    async with connected(nats_url, name="t") as bus, open_window(bus, deadline=LATE) as window:
        await make_stream(bus)
        with capture_logs() as logs:
            for first in (1, 11):
                await window.publish_batch(outgoing(range(first, first + 10), acks))
                assert await window.drain(SOON)
        assert await ids(bus) == numbers(1, 20)
        assert not window.prefers_batches
    assert all(ack.error is None for ack in acks)
    assert [line["event"] for line in logs] == ["batches_refused"]


async def test_b12_a_stream_that_was_made_without_batches_is_used_as_it_is(nats_url: str):
    async with connected(nats_url, name="t") as bus:
        await make_stream(bus)
        assert "allow_atomic" not in (await ensure_stream(bus))["config"]


async def test_a_server_that_has_too_many_batches_gets_the_messages_singly(bus: Bus):
    for number in range(50):
        begun = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": "1"}
        await bus.request(subject(number), b"x", headers=begun)
    acks: list[Ack] = []
    async with open_window(bus, deadline=LATE) as window:
        await window.publish_batch(outgoing(range(1, 21), acks))
        assert await window.drain(SOON)
    stored = await stored_headers(bus)
    assert [headers["Nats-Msg-Id"] for headers in stored] == numbers(1, 20)
    assert not any("Nats-Batch-Id" in headers for headers in stored)


async def test_b6_a_server_that_stores_the_commit_alone_is_not_believed(bus: Bus):
    """As servers before 2.12 do: they know nothing of the headers."""
    acks: list[Ack] = []
    received: list[str] = []

    async def store(message: Any) -> None:
        received.append(message.headers["Nats-Msg-Id"])
        if message.reply:
            await message.respond(b'{"stream":"S","seq":%d}' % len(received))

    await bus.nc.subscribe("old.>", cb=store)
    async with open_window(bus, deadline=LATE) as window:
        messages = [m._replace(subject="old.x") for m in outgoing(range(1, 6), acks)]
        await window.publish_batch(messages)
        assert await window.drain(SOON)
    assert received == numbers(1, 5) * 2
    assert [ack.seq for ack in acks] == [6, 7, 8, 9, 10]


# --- which way is faster ----------------------------------------------------------------------


def answered(pace: Pace, now: float, seconds: float, messages: int = 1, times: int = 400) -> float:
    """So many answers, each after so many seconds, of a server that always had work."""
    for _ in range(times):
        now += seconds
        pace.note(now, now - 1.0, 500, messages)
    return now


def test_batches_are_tried_where_messages_are_dear_and_kept_where_they_are_cheaper():
    pace = Pace()
    assert not pace.prefers_batches(0.0)
    now = answered(pace, 1.0, 0.0002)
    assert pace.prefers_batches(now)  # to learn what they cost
    now = answered(pace, now, 0.02, messages=500, times=2)
    assert pace.prefers_batches(now)
    now = answered(pace, now, 0.15, messages=500, times=10)
    assert not pace.prefers_batches(now)


def test_batches_are_not_tried_where_messages_are_cheap():
    pace = Pace()
    assert not pace.prefers_batches(answered(pace, 1.0, 0.00005))


def test_answers_of_a_server_that_had_nothing_to_do_say_nothing():
    pace = Pace()
    now = 1.0
    for _ in range(400):
        now += 0.01
        pace.note(now, now - 0.001, 500, 1)  # sent after the previous answer
        pace.note(now, now - 1.0, 5, 1)  # few in flight
    assert not pace.prefers_batches(now)


def test_what_was_measured_a_while_ago_is_measured_again():
    pace = Pace()
    now = answered(pace, 1.0, 0.0002)
    now = answered(pace, now, 0.2, messages=500, times=2)
    assert not pace.prefers_batches(now)
    now = answered(pace, now + 100, 0.0002)
    assert pace.prefers_batches(now)


async def test_what_is_gathered_goes_together_once_that_is_worth_it_and_is_bounded(
    bus: Bus,
):
    acks: list[Ack] = []
    async with open_window(bus, pace=PaceLimits(dear=0, worth_it=1e9)) as window:
        gathering = Gathering(window)
        for message in outgoing(range(3000), acks):
            await gathering.publish(message)
        large = outgoing([3000], acks, b"x" * 100_000)[0]
        await gathering.publish(large)
        await gathering.flush()
        assert await window.drain(SOON)
        assert window.batch_limits == (500, 4 * 1024**2)
    assert await count(bus) == len(acks) == 3001
    batched = await bus.request(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":2600}')
    assert "Nats-Batch-Id" in (batched.headers or {})


async def make_stream(bus: Bus) -> None:
    """One as fleetbus made it before it knew of batches."""
    config = {
        "name": STREAM,
        "subjects": list(STREAM_SUBJECTS),
        "storage": "file",
        "discard": "old",
        "max_age": 24 * 3600 * 10**9,
        "max_bytes": 2 * 1024**3,
        "duplicate_window": 120 * 10**9,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }
    await call_jetstream(bus, f"STREAM.CREATE.{STREAM}", config | {"num_replicas": 1})


def port_of(server: NatsServer) -> int:
    return int(server.url.rpartition(":")[2])


async def has(bus: Bus, messages: int) -> bool:
    return await count(bus) == messages
