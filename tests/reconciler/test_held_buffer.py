"""Events that controllers of the process write come to the projector together (rule P9)."""

from __future__ import annotations

import time
from datetime import timedelta
from math import inf

import pytest

from fleetbus.bus.buffer import BATCH, Buffered, Delivery
from fleetbus_proto.events import Event, Message
from fleetbus_reconciler.projector.held_buffer import HeldBuffer
from support.stores.snapshot import Source

PODS, MAPS = Source(cluster="eu1"), Source(cluster="eu1", resource="configmaps")
LONG = timedelta(minutes=1)


def is_pod(event: Event) -> bool:
    return event.resource == "pods"


@pytest.fixture
def buffer() -> HeldBuffer:
    return HeldBuffer(is_pod, held=LONG)


def wrap(sequence: int, message: Message | None) -> Buffered:
    return Buffered(f"ack.{sequence}", 1, Delivery(message, sequence, "subject", {}))


def pod(sequence: int) -> Buffered:
    return wrap(sequence, PODS.added("a", sequence))


def config_map(sequence: int) -> Buffered:
    return wrap(sequence, MAPS.added("a", sequence))


def test_an_event_that_nobody_else_writes_is_taken_at_once(buffer: HeldBuffer):
    message = config_map(1)
    buffer.add(message)
    assert buffer.take() == [message]


def test_those_that_others_write_are_taken_together_when_the_first_is_due():
    buffer = HeldBuffer(is_pod, held=timedelta(milliseconds=20))
    messages = [pod(1), pod(2)]
    for message in messages:
        buffer.add(message)
        assert buffer.take() == ()
    assert 0 < buffer.wait <= 0.02
    time.sleep(buffer.wait)  # the time that is measured
    assert buffer.take() == messages
    buffer.done(messages)
    assert not buffer.take()
    assert buffer.wait == inf


@pytest.mark.parametrize(
    "other", [config_map(2), wrap(2, PODS.end(1)), wrap(2, None)], ids=["event", "end", "rejected"]
)
def test_what_is_not_held_lets_all_before_it_go_in_stream_order(
    buffer: HeldBuffer, other: Buffered
):
    first = pod(1)
    buffer.add(first)
    assert buffer.take() == ()
    buffer.add(other)
    assert buffer.take() == [first, other]


def test_a_full_batch_does_not_wait_and_the_rest_follows_it(buffer: HeldBuffer):
    messages = [pod(number) for number in range(BATCH + 1)]
    for message in messages:
        buffer.add(message)
    batch = buffer.take()
    assert batch == messages[:BATCH]
    buffer.done(batch)
    assert buffer.take() == messages[BATCH:]


def test_what_comes_during_a_batch_waits_for_itself(buffer: HeldBuffer):
    first, second = config_map(1), pod(2)
    buffer.add(first)
    batch = buffer.take()
    buffer.add(second)
    buffer.done(batch)
    assert buffer.take() == ()
    assert buffer.wait > 0
    assert buffer.unhandled() == [second]
