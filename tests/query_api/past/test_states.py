"""The states of objects at a point in time (rule A9)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.jetstream import ensure_prior_states
from fleetbus.run.current import ObjectRef
from fleetbus_proto.admission import subject_of
from fleetbus_proto.prior import PriorState, encode_prior_state
from fleetbus_proto.subjects import prior_subject
from fleetbus_query_api.past.states import Existence, PastState, created_at
from support.stores.recorded_past import LIMITS, RecordedPast, pod
from support.stores.snapshot import PODS, Source

if TYPE_CHECKING:
    from datetime import datetime

EU1, US1 = Source(), Source(cluster="us1")


def ref(name: str, cluster: str = "eu1") -> ObjectRef:
    return ObjectRef(cluster, PODS, "prod", name)


async def state(past: RecordedPast, name: str, at: datetime) -> PastState:
    return (await past.states.at([ref(name)], at))[ref(name)]


async def test_a9_the_state_is_that_of_the_last_event_before_the_time(past: RecordedPast):
    before = await past.now()
    added = await past.record(EU1.added("web", 10, body=pod("web", 10, "a")))
    changed = await past.record(EU1.modified("web", 11, body=pod("web", 11, "b")))
    deleted = await past.record(EU1.deleted("web", 12, body=pod("web", 12, "b")))
    again = await past.record(EU1.added("web", 13, body=pod("web", 13, "c")))
    assert (await state(past, "web", before)).existence is Existence.ABSENT
    assert (await state(past, "web", added)).body == pod("web", 10, "a")
    assert (await state(past, "web", changed)).body == pod("web", 11, "b")
    assert (await state(past, "web", deleted)).existence is Existence.ABSENT
    assert (await state(past, "web", again)).body == pod("web", 13, "c")


async def test_a9_what_has_no_event_any_more_is_as_the_snapshot_has_it(past: RecordedPast):
    await past.snapshot.apply(EU1.added("old", 5, body=pod("old", 5)))
    at = await past.record(EU1.added("new", 6, body=pod("new", 6)))
    states = await past.states.at([ref("old"), ref("none"), ref("new")], at)
    assert states[ref("old")].body == pod("old", 5)
    assert states[ref("none")].existence is Existence.ABSENT
    assert states[ref("new")].body == pod("new", 6)


async def test_a9_a_state_before_the_first_event_is_unknown_unless_it_was_recorded(
    past: RecordedPast,
):
    at = await past.now()
    changed = EU1.modified("web", 11, body=pod("web", 11, "b"))
    young = EU1.modified(
        "young", 12, body=pod("young", 12, creationTimestamp="2999-01-01T00:00:00Z")
    )
    listed = EU1.listed("seen", 9, body=pod("seen", 9))
    deleted = EU1.deleted("gone", 13, body=pod("gone", 13, "z"))
    large = EU1.deleted("large", 14, body=None)
    await past.record(changed, young, listed, deleted, large)
    assert (await state(past, "web", at)).existence is Existence.UNKNOWN
    assert "changed at" in (await state(past, "web", at)).reason
    assert (await state(past, "young", at)).existence is Existence.ABSENT
    assert "seen by a list" in (await state(past, "seen", at)).reason
    assert (await state(past, "gone", at)).body == pod("gone", 13, "z")
    assert "did not fit" in (await state(past, "large", at)).reason

    await ensure_prior_states(past.bus, LIMITS)
    prior = PriorState(
        cluster="eu1",
        incarnation=1,
        group="core",
        resource="pods",
        namespace="prod",
        name="web",
        uid="uid-web",
        resource_version="3",
        replaced_by="11",
        object=pod("web", 3, "a"),
    )
    subject = prior_subject("eu1", "core", "pods", "prod", "web")
    await past.bus.request(subject, encode_prior_state(prior))
    assert (await state(past, "web", at)).body == pod("web", 3, "a")
    assert (await state(past, "seen", at)).existence is Existence.UNKNOWN


async def test_p2_an_event_that_was_stored_late_is_not_the_last_one(past: RecordedPast):
    older = Source(rank=(5, 1))
    await past.record(EU1.modified("web", 20, body=pod("web", 20, "new")))
    at = await past.record(EU1.added("web", 10, body=pod("web", 10, "old")))
    assert (await state(past, "web", at)).body == pod("web", 20, "new")
    at = await past.record(EU1.deleted("web", 30), older.listed("web", 4, body=pod("web", 4)))
    assert (await state(past, "web", at)).existence is Existence.ABSENT
    later = Source(rank=(40, 2))
    at = await past.record(later.listed("web", 20, body=pod("web", 20, "back")))
    assert (await state(past, "web", at)).body == pod("web", 20, "back")
    restored = Source(incarnation=2)
    at = await past.record(restored.modified("web", 3, body=pod("web", 3, "restored")))
    assert (await state(past, "web", at)).body == pod("web", 3, "restored")


async def test_p6_a_late_deletion_of_a_sweep_hides_none_that_a_watch_saw(past: RecordedPast):
    swept = Source(rank=(26, 2))
    await past.record(EU1.added("web", 19), swept.added("web", 28))
    there = await past.record(EU1.added("other", 29))
    await past.record(swept.deleted("web", 30))
    late = await past.record(swept.deleted("web", 26, final_state_unknown=True))
    assert (await state(past, "web", there)).is_present
    assert (await state(past, "web", late)).existence is Existence.ABSENT
    assert await past.snapshot.version("web") == ""
    back = await past.record(swept.added("web", 31), swept.deleted("web", 27))
    assert (await state(past, "web", back)).is_present


async def test_w6_what_left_one_selection_may_be_in_another(past: RecordedPast):
    chosen = Source(scope="chosen")
    await past.record(EU1.added("web", 19), chosen.added("web", 19))
    left = chosen.deleted("web", 20, left_selection=True)
    at = await past.record(EU1.modified("web", 20), left)
    assert (await state(past, "web", at)).is_present
    assert await past.snapshot.version("web") == "20"


async def test_a9_a_malformed_event_hides_no_later_one(past: RecordedPast):
    at = await past.now()
    event = EU1.deleted("web", 10, body=pod("web", 9))
    name = {"Nats-Msg-Id": "malformed"}
    await past.bus.request(subject_of(event), b"garbage", headers=name)
    await past.record(event)
    assert (await state(past, "web", at)).body == pod("web", 9)


@pytest.mark.slow
async def test_a9_many_objects_of_many_clusters_are_read_together(past: RecordedPast):
    names = [f"pod-{number}" for number in range(700)]
    events = [
        source.added(name, number + 1, body=pod(name, number + 1))
        for source in (EU1, US1)
        for number, name in enumerate(names)
    ]
    # Two verbs of each make more than a server answers at once.
    events += [
        EU1.modified(name, 1000 + n, body=pod(name, 1000 + n)) for n, name in enumerate(names)
    ]
    for event in events:
        await past.publish(event)
    for first in range(0, len(events), 500):
        await past.snapshot.apply(*events[first : first + 500])
    at = await past.now()
    refs = [ref(name, cluster) for name in names for cluster in ("eu1", "us1")]
    states = await past.states.at(refs, at + timedelta(seconds=1))
    assert all(one.is_present for one in states.values())
    assert states[ref("pod-3")].body == pod("pod-3", 1003)
    assert states[ref("pod-3", "us1")].body == pod("pod-3", 4)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_creation_time_that_no_clock_can_show_is_unknown(text: str):
    assert created_at(b'{"metadata":{"creationTimestamp":"%b"}}' % text.encode()) is None
