"""Bus → handler → acknowledgement, in that order, whatever the bus does (P9, B7, B15, B18)."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.bus.buffer import Buffer, Delivery, FairBuffer
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer, Handle
from fleetbus.bus.durables import consumer_info, delete_consumer, ensure_consumer
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.reconcile import Request
from fleetbus.workqueue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, event_subject
from support.eventually import eventually, never
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

SOURCE = Source()
DURABLE = "copier-a"
SOON = timedelta(seconds=10)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=50))


@asynccontextmanager
async def a_bus(url: str) -> AsyncGenerator[Bus]:
    async with connected(url, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)
        await ensure_consumer(bus, DURABLE, [EVENTS_ALL])
        yield bus


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with a_bus(nats_url) as client:
        yield client


async def publish(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await send(bus, SOURCE.added(f"o{number}", number + 1))


async def send(bus: Bus, event: Event) -> None:
    place = (event.cluster, "core", "pods", "prod", event.name)
    subject = event_subject(*place, event.verb)
    await bus.request(subject, codec.encode(event), headers=headers.build(event, MESSAGE_KEY))


class Handled:
    """A handler that records its batches; it raises `fail` if that is set."""

    def __init__(self) -> None:
        self.batches: list[list[Delivery]] = []
        self.fail: BaseException | None = None
        self.tries = 0
        self.begun = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def __call__(self, deliveries: Sequence[Delivery]) -> None:
        self.tries += 1
        self.begun.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.fail is not None:
            raise self.fail
        self.batches.append(list(deliveries))

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for batch in self.batches for delivery in batch]

    @property
    def names(self) -> list[str]:
        return [
            delivery.message.name
            for delivery in self.deliveries
            if isinstance(delivery.message, Event)
        ]


@asynccontextmanager
async def consuming(
    bus: Bus,
    handled: Handle,
    line: Buffer | None = None,
    on_turn: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Consumer]:
    consumer = Consumer(
        bus, stream=STREAM, durable=DURABLE, handle=handled, buffer=line, on_turn=on_turn
    )
    task = asyncio.create_task(consumer.run(), name="consume")
    try:
        yield consumer
    finally:
        assert not task.done() or task.cancelled(), task.exception()
        task.cancel()
        async with asyncio.timeout(15):
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def pending(bus: Bus) -> tuple[int, int]:
    """Messages not delivered, and delivered but not acknowledged."""
    info = await consumer_info(bus, DURABLE)
    assert info is not None
    return info["num_pending"], info["num_ack_pending"]


async def is_pending(bus: Bus, number: int) -> bool:
    return sum(await pending(bus)) == number


async def is_acked(bus: Bus) -> bool:
    return await pending(bus) == (0, 0)


def names(*numbers: int) -> list[str]:
    return [f"o{number}" for number in numbers]


async def test_p9_messages_come_in_batches_in_stream_order_and_are_acked_when_handled(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.bus.buffer.BATCH", 100)
    handled = Handled()
    handled.hold = asyncio.Event()
    async with consuming(bus, handled):
        await publish(bus, *range(250))
        await eventually(lambda: handled.tries == 1)
        # The server says so a moment after it has stored the last one.
        await eventually(lambda: is_pending(bus, 250))  # B7: no acknowledgement before the handler
        handled.hold.set()
        await eventually(lambda: len(handled.deliveries) == 250, within=SOON)
        await eventually(lambda: is_acked(bus))
    assert handled.names == names(*range(250))
    assert max(map(len, handled.batches)) == 100
    assert [delivery.sequence for delivery in handled.deliveries] == list(range(1, 251))


async def test_p9_a_handler_that_fails_keeps_the_batch_and_nothing_is_acked(bus: Bus) -> None:
    handled = Handled()
    handled.fail = ConnectionError("Redis is down")
    await publish(bus, 0, 1, 2)
    with capture_logs() as logs:
        await _fail_and_heal(bus, handled)
    assert handled.names == names(0, 1, 2)
    assert [line["error"] for line in logs if line["event"] == "batch_failed"] == ["Redis is down"]


async def _fail_and_heal(bus: Bus, handled: Handled) -> None:
    async with consuming(bus, handled):
        await eventually(lambda: handled.tries >= 3)
        assert (await pending(bus))[1] == 3
        handled.fail = None
        await eventually(lambda: is_acked(bus))


async def test_b18_an_unreadable_message_is_handed_over_terminated_and_passed_by(bus: Bus) -> None:
    handled = Handled()
    event = SOURCE.added("o1", 1)
    good = headers.build(event, MESSAGE_KEY)
    subject = event_subject("eu1", "core", "pods", "prod", "bad", event.verb)
    await publish(bus, 0)
    await bus.request(subject, b"\xc1 not msgpack", headers={**good, "Nats-Msg-Id": "bad-1"})
    stranger = {**good, headers.FORMAT_HEADER: "99", "Nats-Msg-Id": "bad-2"}
    await bus.request(subject, codec.encode(event), headers=stranger)
    await bus.request(subject, codec.encode(event))  # no headers at all
    await publish(bus, 1)
    async with consuming(bus, handled):
        await eventually(lambda: len(handled.deliveries) == 5)
        await eventually(lambda: is_acked(bus))
    assert handled.names == names(0, 1)
    aside = [delivery for delivery in handled.deliveries if delivery.message is None]
    assert [delivery.sequence for delivery in aside] == [2, 3, 4]
    assert {delivery.subject for delivery in aside} == {subject}
    assert all(delivery.problem for delivery in aside)
    assert "99" in aside[1].problem


async def test_b15_a_consumer_that_is_deleted_and_made_again_goes_on(bus: Bus) -> None:
    handled = Handled()
    async with consuming(bus, handled) as consumer:
        await publish(bus, 0)
        await eventually(lambda: handled.names == names(0))
        await eventually(lambda: is_acked(bus))
        await delete_consumer(bus, DURABLE)
        await eventually(lambda: consumer.is_missing)
        await ensure_consumer(bus, DURABLE, [EVENTS_ALL], start=2)
        await publish(bus, 1)
        await eventually(lambda: handled.names == names(0, 1))
        assert not consumer.is_missing


async def test_b15_a_missing_consumer_is_asked_for_slowly(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=200))
    await delete_consumer(bus, DURABLE)
    async with consuming(bus, Handled()) as consumer:
        await eventually(lambda: consumer.is_missing)
        before = bus.nc.stats["out_msgs"]
        await asyncio.sleep(0.6)  # a few pauses pass
        assert 1 <= bus.nc.stats["out_msgs"] - before <= 4


async def test_b15_messages_flow_again_after_a_restart_of_nats(tmp_path: pathlib.Path) -> None:
    async with nats_server(store_dir=tmp_path) as server, a_bus(server.url) as bus:
        handled = Handled()
        async with consuming(bus, handled):
            await publish(bus, 0)
            await eventually(lambda: "o0" in handled.names)
            server.kill()
            await server.restart()
            await eventually(lambda: bus.is_connected, within=SOON)
            await publish(bus, 1)
            await eventually(lambda: "o1" in handled.names, within=SOON)


async def test_a_consumer_without_messages_turns_only_to_report_progress(bus: Bus) -> None:
    turns = 0

    def note_turn() -> None:
        nonlocal turns
        turns += 1

    async with consuming(bus, Handled(), on_turn=note_turn):
        await eventually(lambda: _is_pulled(bus))
        before = turns
        await never(lambda: turns > before + 1, timedelta(seconds=1))


async def _is_pulled(bus: Bus) -> bool:
    info = await consumer_info(bus, DURABLE)
    return info is not None and info["num_waiting"] > 0


async def test_b14_a_stop_while_waiting_or_handling_ends_at_once(bus: Bus) -> None:
    async with consuming(bus, Handled()):
        await eventually(lambda: _is_pulled(bus))
    handled = Handled()
    handled.hold = asyncio.Event()
    await publish(bus, 0)
    async with consuming(bus, handled):
        await eventually(lambda: handled.tries == 1)


async def test_b7_what_a_stop_left_unhandled_is_delivered_again_without_waiting(bus: Bus) -> None:
    first = Handled()
    first.hold = asyncio.Event()
    await publish(bus, *range(5))
    async with consuming(bus, first):
        await eventually(lambda: first.tries == 1)
    second = Handled()
    async with consuming(bus, second):
        await eventually(lambda: sorted(second.names) == names(*range(5)))


@pytest.mark.parametrize("has_run", [False, True])
async def test_b7_a_crash_between_enqueue_and_ack_costs_one_more_run_at_most(
    bus: Bus, redis: Redis, *, has_run: bool
) -> None:
    queue = RedisQueue(redis, "copier")
    hold: list[asyncio.Event] = [asyncio.Event()]
    runs = 0

    async def enqueue(deliveries: Sequence[Delivery]) -> None:
        events = [
            delivery.message for delivery in deliveries if isinstance(delivery.message, Event)
        ]
        await queue.add([Add(Request("copier", e.cluster, e.namespace, e.name)) for e in events])
        for gate in hold:
            await gate.wait()

    async def work() -> int:
        leases = await queue.take(10)
        await queue.done(leases)
        return len(leases)

    await publish(bus, 0)
    crashing = asyncio.create_task(consumer_of(bus, enqueue).run())
    await eventually(queue_has_one(queue))
    assert await pending(bus) == (0, 1), "nothing is acknowledged before it is handled"
    if has_run:
        runs += await work()
    crashing.cancel()
    await asyncio.gather(crashing, return_exceptions=True)
    hold.clear()
    again = asyncio.create_task(consumer_of(bus, enqueue).run())
    await eventually(lambda: is_acked(bus))
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    runs += await work()
    assert runs == 1 + has_run
    assert await work() == 0
    await queue.aclose()


def consumer_of(bus: Bus, handle: Handle) -> Consumer:
    return Consumer(bus, stream=STREAM, durable=DURABLE, handle=handle)


def queue_has_one(queue: RedisQueue) -> Callable[[], Awaitable[bool]]:
    async def has_one() -> bool:
        return sum((await queue.stats()).depth.values()) == 1

    return has_one


async def test_b15_an_expired_pull_is_asked_again_and_only_its_own_rest_is_forgotten(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.bus.consume.PULL_EXPIRES", timedelta(milliseconds=300))
    handled = Handled()
    async with consuming(bus, handled):
        for number in range(8):
            await publish(bus, number)
            await asyncio.sleep(0.1)  # pulls expire meanwhile
            info = await consumer_info(bus, DURABLE)
            assert info is not None
            assert info["num_waiting"] <= 2
        await eventually(lambda: handled.names == names(*range(8)))


async def test_p9_two_processes_share_one_durable_and_each_message_is_handled(bus: Bus) -> None:
    first, other = Handled(), Handled()
    async with consuming(bus, first), consuming(bus, other):
        await publish(bus, *range(30))
        await eventually(lambda: len(first.names) + len(other.names) == 30)
        await eventually(lambda: is_acked(bus))
    assert sorted(first.names + other.names) == sorted(names(*range(30)))


# --- fairly over the clusters -----------------------------------------------------------------


async def test_q9_a_cluster_whose_messages_cannot_be_handled_holds_up_no_other(bus: Bus) -> None:
    handled = Handled()
    is_broken = True

    async def handle(deliveries: Sequence[Delivery]) -> None:
        clusters = {delivery.message.cluster for delivery in deliveries if delivery.message}
        if is_broken and "eu1" in clusters:
            raise ConnectionError("eu1 is trouble")
        await handled(deliveries)

    async with consuming(bus, handle, FairBuffer()):
        await publish(bus, 0, 1)
        for number in range(3):
            await send(bus, Source(cluster="us1").added(f"u{number}", 1))
        await eventually(lambda: sorted(handled.names) == ["u0", "u1", "u2"])
        await eventually(lambda: is_pending(bus, 2))
        is_broken = False
        await eventually(lambda: is_acked(bus))
    assert sorted(handled.names) == ["o0", "o1", "u0", "u1", "u2"]


async def test_q9_of_an_object_that_changes_faster_than_it_is_handled_the_last_state_is(
    bus: Bus,
) -> None:
    handled = Handled()
    handled.hold = asyncio.Event()
    async with consuming(bus, handled, FairBuffer()):
        await send(bus, SOURCE.added("hot", 1))
        await eventually(lambda: handled.tries == 1)
        for version in range(2, 300):
            await send(bus, SOURCE.modified("hot", version))
        # They do not wait until the last one is handled: only that many may be out.
        await eventually(lambda: is_at_most_pending(bus, 100))
        handled.hold.set()
        await eventually(lambda: is_acked(bus))
    events = [
        delivery.message for delivery in handled.deliveries if isinstance(delivery.message, Event)
    ]
    versions = [event.resource_version for event in events]
    assert versions == ["1", "299"]


async def is_at_most_pending(bus: Bus, number: int) -> bool:
    return sum(await pending(bus)) <= number


async def test_b7_a_stop_gives_back_what_is_handled_and_what_waits(bus: Bus) -> None:
    stopped, again = Handled(), Handled()
    stopped.hold = asyncio.Event()
    async with consuming(bus, stopped, FairBuffer()):
        await publish(bus, 0)
        await eventually(lambda: stopped.tries == 1)
        await publish(bus, 1)
        await send(bus, Source(cluster="us1").added("u0", 1))
        await eventually(lambda: stopped.tries == 2)
    async with consuming(bus, again, FairBuffer()):
        await eventually(lambda: sorted(again.names) == ["o0", "o1", "u0"], timedelta(seconds=5))
        await eventually(lambda: is_acked(bus))


async def test_b7_a_stop_gives_back_what_is_on_its_way(bus: Bus) -> None:
    """Under load hundreds have been sent to us that we have not looked at yet."""
    await asyncio.gather(*(publish(bus, number) for number in range(400)))
    handled = Handled()
    handled.hold = asyncio.Event()
    async with consuming(bus, handled):
        await handled.begun.wait()
    again = Handled()
    async with consuming(bus, again):
        await eventually(lambda: len({*again.names}) == 400, SOON)  # AckWait is 30 s


async def test_a_batch_that_hangs_is_not_vouched_for_by_the_others(bus: Bus) -> None:
    handled, turns = Handled(), [0]
    hangs, hang = asyncio.Event(), asyncio.Event()

    async def handle(deliveries: Sequence[Delivery]) -> None:
        if any(delivery.message and delivery.message.cluster == "eu1" for delivery in deliveries):
            hangs.set()
            await hang.wait()
        await handled(deliveries)

    def count() -> None:
        turns[0] += 1

    async with consuming(bus, handle, FairBuffer(), on_turn=count):
        await publish(bus, 0)
        await hangs.wait()
        before = turns[0]
        for number in range(3):
            await send(bus, Source(cluster="us1").added(f"u{number}", 1))
            await eventually(lambda n=number: f"u{n}" in handled.names)
        assert turns[0] == before
        hang.set()
        await eventually(lambda: turns[0] > before)


async def test_p9_a_handler_that_ends_as_cancelled_is_tried_again(bus: Bus) -> None:
    handled = Handled()
    handled.fail = asyncio.CancelledError()
    async with consuming(bus, handled):
        await publish(bus, 0)
        await eventually(lambda: handled.tries >= 2)
        handled.fail = None
        await eventually(lambda: is_acked(bus))
    assert handled.names == names(0)
