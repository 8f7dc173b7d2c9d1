"""When messages come again: what was not handled, what a killed process held (rules P9, B7)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

import pytest

from fleetbus.bus.buffer import Buffer, Delivery, FairBuffer
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer, PartlyHandled
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, event_subject
from support.eventually import eventually
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

SOURCE = Source()
DURABLE = "copier-a"
ACK_WAIT = timedelta(seconds=2)


@pytest.fixture
async def bus(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Bus]:
    monkeypatch.setattr("fleetbus.bus.durables.ACK_WAIT", ACK_WAIT)
    async with connected(nats_url, name="test") as client:
        await ensure_stream(client)
        await ensure_bucket(client)
        await ensure_consumer(client, DURABLE, [EVENTS_ALL])
        yield client


async def publish(bus: Bus, count: int) -> None:
    for number in range(count):
        event = SOURCE.added(f"o{number}", number + 1)
        subject = event_subject(event.cluster, "core", "pods", "prod", event.name, event.verb)
        await bus.request(subject, codec.encode(event), headers=headers.build(event, MESSAGE_KEY))


def names_of(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.name for delivery in deliveries if isinstance(delivery.message, Event)]


async def is_through(bus: Bus) -> bool:
    info = await consumer_info(bus, DURABLE)
    return info is not None and (info["num_pending"], info["num_ack_pending"]) == (0, 0)


def start(bus: Bus, handle: object, buffer: Buffer | None = None) -> asyncio.Task[None]:
    consumer = Consumer(
        bus,
        buffer=buffer,
        stream=STREAM,
        durable=DURABLE,
        handle=handle,  # type: ignore[arg-type]
        progress_every=timedelta(seconds=0.2),
        again_after=(timedelta(seconds=0.2), timedelta(seconds=0.4)),
    )
    return asyncio.create_task(consumer.run())


async def stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_what_a_part_of_the_store_could_not_take_comes_again_and_the_rest_is_over(
    bus: Bus,
) -> None:
    handled: list[str] = []
    tries: list[float] = []
    is_away = True

    async def handle(deliveries: Sequence[Delivery]) -> None:
        failed = {d.sequence for d in deliveries if is_away and names_of([d]) == ["o1"]}
        handled.extend(
            names_of([delivery for delivery in deliveries if delivery.sequence not in failed])
        )
        if failed:
            tries.append(time.monotonic())
            raise PartlyHandled(failed, ConnectionError("a server is away"))

    await publish(bus, 4)
    task = start(bus, handle)
    try:
        await eventually(lambda: len(tries) >= 4)
        assert handled == ["o0", "o2", "o3"], "they were acknowledged, and did not come again"
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses[0] >= 0.15, "not a hot loop"
        assert pauses[-1] >= 0.35, "the pauses grow"
        is_away = False
        await eventually(lambda: is_through(bus))
    finally:
        await stop(task)
    assert handled == ["o0", "o2", "o3", "o1"]


@pytest.mark.slow
async def test_b7_what_waits_long_in_a_slow_process_is_delivered_to_no_other(bus: Bus) -> None:
    handled: list[str] = []

    async def handle(deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(0.6)  # a slow handler
        handled.extend(names_of(deliveries))

    await publish(bus, 900)  # some batches, of which the last waits longer than the AckWait
    task = start(bus, handle)
    try:
        await eventually(lambda: is_through(bus), within=timedelta(seconds=30))
        info = await consumer_info(bus, DURABLE)
        assert info is not None
        assert info["num_redelivered"] == 0
    finally:
        await stop(task)
    assert len(handled) == len(set(handled)) == 900


@pytest.mark.slow
async def test_b7_what_a_killed_process_held_goes_to_another_after_the_ack_wait(
    bus: Bus, nats_url: str
) -> None:
    handled: list[str] = []
    has_begun = asyncio.Event()

    async def hang(_deliveries: Sequence[Delivery]) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def handle(deliveries: Sequence[Delivery]) -> None:
        handled.extend(names_of(deliveries))

    await publish(bus, 20)
    async with connected(nats_url, name="killed") as other:
        killed = start(other, hang)
        await has_begun.wait()
        began = time.monotonic()
        await other.nc.close()  # nothing more comes from it
        task = start(bus, handle)
        await eventually(lambda: len(set(handled)) == 20)
        took = time.monotonic() - began
        await stop(task, killed)
    assert took < 2 * ACK_WAIT.total_seconds()


@pytest.mark.slow
async def test_b7_what_came_again_while_it_was_unfinished_is_acknowledged_with_the_first(
    bus: Bus,
) -> None:
    may_finish = asyncio.Event()
    handled: list[str] = []

    async def handle(deliveries: Sequence[Delivery]) -> None:
        handled.extend(names_of(deliveries))
        for delivery in deliveries:
            delivery.unfinished.append(asyncio.create_task(finish()))

    async def finish() -> None:
        await may_finish.wait()

    async def is_redelivered() -> bool:
        info = await consumer_info(bus, DURABLE)
        return info is not None and info["num_redelivered"] == 3

    await publish(bus, 3)
    task = start(bus, handle, FairBuffer())
    try:
        await eventually(is_redelivered)
        may_finish.set()
        await eventually(lambda: is_through(bus), within=ACK_WAIT / 2)
    finally:
        await stop(task)
    assert handled == ["o0", "o1", "o2"]
