"""Messages wait fairly: a cluster that floods the bus delays only itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from fleetbus.bus import buffer
from fleetbus.bus.buffer import BATCH, BURST, SHARED, Buffered, Delivery, FairBuffer, FifoBuffer
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key
from support.stores.snapshot import Source

SOURCES = {name: Source(cluster=name) for name in ("calm", "flood", "other")}


class Sender:
    """Makes messages as they come from the stream, each with the next sequence number."""

    def __init__(self) -> None:
        self.sequence = 0

    def wrap(self, message: Event | None, body: bytes = b"body") -> Buffered:
        self.sequence += 1
        delivery = Delivery(message, self.sequence, "subject", {})
        return Buffered(f"ack.{self.sequence}", len(body), delivery)

    def change(self, cluster: str, name: str, version: int, **fields: Any) -> Buffered:
        event = SOURCES[cluster].modified(name, version)
        return self.wrap(msgspec.structs.replace(event, **fields))


@pytest.fixture
def sender() -> Sender:
    return Sender()


def event_of(buffered: Buffered) -> Event:
    assert isinstance(buffered.delivery.message, Event)
    return buffered.delivery.message


def reported(batch: Sequence[Buffered]) -> list[tuple[str, str, str]]:
    return [(e.cluster, e.name, e.resource_version) for e in map(event_of, batch)]


def add(fair: FairBuffer, *messages: Buffered) -> list[Buffered]:
    """Add messages; return those that are superseded."""
    return [loser for message in messages if (loser := fair.add(message)) is not None]


# --- fairness ---------------------------------------------------------------------------------


def test_q9_who_comes_while_a_burst_is_handled_does_not_wait_for_it(sender: Sender):
    fair = FairBuffer()
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(3 * BURST)))
    add(fair, sender.change("calm", "p", 1))
    first, second, third = fair.take(), fair.take(), fair.take()
    assert reported(first) == [("calm", "p", "1")]
    assert reported(second) == [("flood", f"p{n}", "1") for n in range(BURST)]
    assert third == []  # of a cluster one batch at a time


def test_q9_small_ones_share_a_batch_and_a_burst_goes_by_itself(sender: Sender):
    fair = FairBuffer()
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(BURST)))
    add(fair, sender.change("calm", "p", 1), sender.change("other", "p", 1))
    assert {cluster for cluster, *_ in reported(fair.take())} == {"calm", "other"}
    assert {cluster for cluster, *_ in reported(fair.take())} == {"flood"}


def test_q9_many_small_ones_share_a_batch(sender: Sender):
    fair = FairBuffer()
    for name in ("calm", "other"):
        add(fair, *(sender.change(name, f"p{n}", 1) for n in range(BURST - 1)))
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(BURST)))
    assert len(fair.take()) == 2 * (BURST - 1)


def test_p9_the_projector_gets_all_states_and_one_batch_at_a_time(sender: Sender):
    fair = FairBuffer(is_skippable=lambda _older, _newer: False, concurrency=1)
    assert fair.concurrency == 1
    assert add(fair, sender.change("calm", "p", 1), sender.change("calm", "p", 2)) == []
    assert reported(fair.take()) == [("calm", "p", "1"), ("calm", "p", "2")]


def test_q9_two_bursts_take_turns_and_a_latecomer_gets_no_credit_for_the_past(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(buffer, "MAX_COOLDOWN", timedelta(0))
    fair = FairBuffer()
    add(fair, sender.change("calm", "p", 1))
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(10 * BURST)))
    for _ in range(3):
        fair.done(fair.take())
    add(fair, *(sender.change("other", f"p{n}", 1) for n in range(10 * BURST)))
    served = ""
    while batch := fair.take():
        served += event_of(batch[0]).cluster[0]
        fair.done(batch)
    assert "fff" not in served[:12]
    assert "ooo" not in served[:12]


def test_q9_a_burst_beside_others_rests_longer_than_its_batch_took(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    fair = FairBuffer()

    def handle(seconds: float) -> None:
        batch = fair.take()
        assert {event_of(buffered).cluster for buffered in batch} == {"flood"}
        now[0] += seconds
        fair.done(batch)

    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(BATCH + 6 * BURST)))
    handle(0.05)
    assert fair.wait == 0  # it is alone
    add(fair, sender.change("calm", "p", 1))
    calm = fair.take()
    handle(0.05)
    assert fair.take() == []
    assert fair.wait == pytest.approx(buffer.COOLDOWN_FACTOR * 0.05)
    fair.done(calm)
    add(fair, sender.change("calm", "p", 2))
    assert reported(fair.take()) == [("calm", "p", "2")]
    now[0] += buffer.COOLDOWN_FACTOR * 0.05 + 0.001
    handle(10 * buffer.MAX_COOLDOWN.total_seconds())
    assert fair.wait == pytest.approx(buffer.MAX_COOLDOWN.total_seconds())
    now[0] += buffer.MAX_COOLDOWN.total_seconds() + 0.001
    handle(0.05)
    assert fair.wait == pytest.approx(buffer.COOLDOWN_FACTOR * 0.05)


def test_q9_a_buffer_that_fills_up_ends_all_cooldowns(sender: Sender):
    fair = FairBuffer()
    add(fair, sender.change("calm", "p", 1))
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(fair.capacity)))
    assert fair.capacity <= 0
    calm, flood = fair.take(), fair.take()
    assert (len(calm), len(flood)) == (1, SHARED), "what does not fit is overtaken by nobody"
    fair.done(calm)
    fair.done(flood)
    assert len(fair.take()) == BURST


def test_a_cluster_that_fell_silent_makes_no_burst_of_another(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    fair = FairBuffer()
    add(fair, sender.change("calm", "p", 1))
    fair.done(fair.take())
    now[0] += buffer.IDLE_AFTER.total_seconds() + 1
    add(fair, sender.change("flood", "p", 1))
    fair.done(fair.take())
    add(fair, *(sender.change("flood", f"p{n}", 1) for n in range(2 * BATCH)))
    assert len(fair.take()) == BATCH


@pytest.mark.parametrize("kind", [FifoBuffer, FairBuffer])
def test_b11_large_messages_leave_no_room_and_give_it_back(
    kind: type[FifoBuffer | FairBuffer], sender: Sender
):
    made = kind()
    room = made.capacity
    large = bytes(1024**2)
    for number in range(buffer.BYTES // len(large)):
        assert made.capacity > 0
        made.add(sender.wrap(SOURCES["calm"].modified(f"p{number}", 1), large))
    assert made.capacity == 0
    while batch := made.take():
        made.done(batch)
    assert made.capacity == room


def test_i12_what_is_handled_is_forgotten_although_something_always_waits(sender: Sender):
    fair = FairBuffer()
    for number in range(20 * BATCH):
        fair.add(sender.change("flood", f"p{number}", 1))
        if number % BATCH == BATCH - 1 and (batch := fair.take()):
            fair.add(sender.change("flood", f"q{number}", 1))
            fair.done(batch)
    [flood] = fair._queues.values()  # pyright: ignore[reportPrivateUsage] -- nothing else shows it
    assert 0 < len(flood.slots) == len(flood.newest)


# --- a newer state takes an older one's place -------------------------------------------------


def test_a_newer_state_takes_the_place_of_the_one_that_waits(sender: Sender):
    counted: list[None] = []
    fair = FairBuffer(lambda _delivery: counted.append(None))
    old, beside = sender.change("calm", "p", 1), sender.change("calm", "q", 5)
    assert add(fair, old, beside) == []
    assert add(fair, sender.change("calm", "p", 10)) == [old]
    assert reported(fair.take()) == [("calm", "p", "10"), ("calm", "q", "5")]
    assert len(counted) == 1


def test_b5_an_older_state_that_comes_later_is_the_one_that_goes(sender: Sender):
    fair = FairBuffer()
    late = sender.change("calm", "p", 9)
    assert add(fair, sender.change("calm", "p", 10), late) == [late]
    assert reported(fair.take()) == [("calm", "p", "10")]


def test_p9_what_is_being_handled_is_superseded_by_nothing(sender: Sender):
    fair = FairBuffer()
    add(fair, sender.change("calm", "p", 1))
    batch = fair.take()
    assert add(fair, sender.change("calm", "p", 2)) == []
    assert {buffered.reply for buffered in fair.unhandled()} == {"ack.1", "ack.2"}
    fair.done(batch)
    assert reported(fair.take()) == [("calm", "p", "2")]


LIVE = {"verb": Verb.MODIFIED}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"verb": Verb.DELETED}, LIVE),
        (LIVE, {"verb": Verb.DELETED}),
        (LIVE, {"verb": Verb.LISTED}),
        (LIVE, {"uid": "another"}),
        (LIVE, {"incarnation": SOURCES["other"].added("x", 1).incarnation.__class__(2, "new")}),
        (LIVE, {"resource_version": "1"}),
        ({"resource_version": "opaque"}, LIVE),
        (LIVE, {"namespace": "elsewhere"}),
        (LIVE, {"resource": "secrets"}),
    ],
)
def test_what_says_something_of_its_own_is_handled(
    first: dict[str, Any], second: dict[str, Any], sender: Sender
):
    fair = FairBuffer()
    both = [sender.change("calm", "p", 1, **first), sender.change("calm", "p", 2, **second)]
    assert add(fair, *both) == []
    assert list(fair.take()) == both


@pytest.mark.parametrize("verb", [Verb.ADDED, Verb.MODIFIED, Verb.LISTED])
def test_a_live_change_stands_for_every_state_before_it(verb: Verb, sender: Sender):
    fair = FairBuffer()
    old = sender.change("calm", "p", 1, verb=verb)
    assert add(fair, old, sender.change("calm", "p", 2, verb=Verb.MODIFIED)) == [old]


def test_b18_unreadable_messages_are_all_handled(sender: Sender):
    fair = FairBuffer()
    unread = [sender.wrap(None) for _ in range(3)]
    assert add(fair, *unread) == []
    assert list(fair.take()) == unread


# --- whatever happens -------------------------------------------------------------------------

CHANGES = st.tuples(
    st.sampled_from(["calm", "flood"]),
    st.sampled_from(["p", "q", "r"]),
    st.integers(1, 9),
    st.sampled_from(list(Verb)),
    st.sampled_from(["u1", "u2"]),
)
STEPS = st.lists(CHANGES | st.sampled_from(["take", "done first", "done last"]), max_size=60)


class Driven:
    """A buffer, and the fate of each message."""

    def __init__(self) -> None:
        self.fair = FairBuffer()
        self.empty = self.fair.capacity
        self.taken: list[Sequence[Buffered]] = []
        self.came: list[Buffered] = []
        self.superseded: list[Buffered] = []
        self.handled: list[Buffered] = []

    def add(self, buffered: Buffered) -> None:
        self.came.append(buffered)
        self.superseded += add(self.fair, buffered)

    def take(self) -> None:
        busy = {event_of(buffered).cluster for batch in self.taken for buffered in batch}
        if batch := self.fair.take():
            assert busy.isdisjoint(event_of(buffered).cluster for buffered in batch)
            self.taken.append(batch)

    def finish(self, at: int) -> None:
        if self.taken:
            batch = self.taken.pop(at)
            self.handled += batch
            self.fair.done(batch)

    def check(self) -> None:
        """The buffer holds what was added and is neither handled nor superseded."""
        gone = {buffered.reply for buffered in [*self.handled, *self.superseded]}
        assert {buffered.reply for buffered in self.fair.unhandled()} == {
            o.reply for o in self.came
        } - gone
        assert self.fair.capacity == self.empty - len(self.came) + len(gone)


@given(STEPS)
def test_nothing_is_lost_and_deletions_stay_in_order(steps: list[Any]):
    sender, driven = Sender(), Driven()
    for step in steps:
        if step == "take":
            driven.take()
        elif isinstance(step, str):
            driven.finish(0 if step == "done first" else -1)
        else:
            cluster, name, version, verb, uid = step
            driven.add(sender.change(cluster, name, version, verb=verb, uid=uid))
        driven.check()
    while driven.fair.unhandled():
        driven.finish(0)
        driven.take()
        driven.check()
    for loser in driven.superseded:
        assert any(stands_for(newer, loser) for newer in driven.handled)
    gone = [buffered for buffered in driven.handled if event_of(buffered).verb is Verb.DELETED]
    for place in {(event_of(buffered).cluster, event_of(buffered).name) for buffered in gone}:
        of_one = [
            buffered.delivery.sequence
            for buffered in gone
            if (event_of(buffered).cluster, event_of(buffered).name) == place
        ]
        assert of_one == sorted(of_one)


def stands_for(buffered: Buffered, loser: Buffered) -> bool:
    newer, older = event_of(buffered), event_of(loser)
    return (
        (newer.cluster, newer.name, newer.uid) == (older.cluster, older.name, older.uid)
        and version_key(newer.resource_version) > version_key(older.resource_version)
        and newer.verb in (Verb.ADDED, Verb.MODIFIED)
    )


# --- what is unfinished -----------------------------------------------------------------------


def test_what_comes_again_while_it_is_unfinished_takes_no_room(sender: Sender) -> None:
    fair = FairBuffer()
    late = sender.change("flood", "a", 1)
    fair.add(late)
    before = fair.capacity
    batch = fair.take()
    fair.done(batch, batch)
    for _ in range(3):
        assert fair.add(dataclasses.replace(late)) is None
    assert fair.capacity == before
    assert fair.unhandled() == [late]
    fair.finish(batch)
    assert fair.unhandled() == []
    fair.add(dataclasses.replace(late))
    assert len(fair.take()) == 1, "it was not acknowledged in time"


@pytest.mark.parametrize("number", [1, SHARED, SHARED + 1, BATCH - 1, BATCH, BATCH + 1])
def test_a_cluster_that_is_alone_waits_for_no_further_message(sender: Sender, number: int):
    buffer = FairBuffer()
    for each in range(number):
        buffer.add(sender.change("calm", f"pod-{each}", 1))
    assert len(buffer.take()) == min(number, BATCH)
