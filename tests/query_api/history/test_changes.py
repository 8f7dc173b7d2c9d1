"""Comparisons of many and of large objects (rule A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus.history.states import Existence, PastState
from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus_query_api.history.changes import Candidate, Steps
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi

EU1 = Source()
LARGE = b"x" * 1024**2


def states(count: int, body: bytes) -> dict[ObjectRef, PastState]:
    refs = (ObjectRef("eu1", "core/pods", "prod", f"p{n}") for n in range(count))
    return {ref: PastState(Existence.PRESENT, body) for ref in refs}


def candidates(count: int, size: int) -> list[Candidate]:
    return [Candidate(ObjectRef("eu1", "core/pods", "prod", f"p{n}"), size) for n in range(count)]


def test_a9_few_large_objects_are_read_at_a_time_and_many_small_ones():
    large = list(Steps().divide(candidates(40, 1024**2)))
    assert [len(step) for step in large] == [8] * 5
    small = list(Steps().divide(candidates(2_500, 2)))
    assert [len(step) for step in small] == [1_000, 1_000, 500]
    assert [len(step) for step in Steps().divide(candidates(2, 64 * 1024**2))] == [1, 1]


def test_a9_objects_that_were_larger_than_they_are_make_steps_smaller_for_a_while():
    steps = Steps()
    steps.adapt(states(64, LARGE), states(64, b"{}"))
    assert steps.most * len(LARGE) <= 32 * 1024**2
    for _ in range(10):
        steps.adapt(states(steps.most, b"{}"))
    assert steps.most == 4_000


async def test_a9_all_changes_are_found_however_many_are_read_at_a_time(past_api: PastApi):
    await past_api.add_cluster("eu1", "core/pods")
    names = [f"p{n}" for n in range(150)]
    start = await past_api.past.record(
        *(EU1.added(one, 10 + n, body=pod(one, 10 + n)) for n, one in enumerate(names))
    )
    await past_api.past.record(
        *(EU1.modified(one, 500 + n, body=pod(one, 500 + n, "b")) for n, one in enumerate(names))
    )
    answer = (await past_api.get("/fleet/v1/changes", since=rfc3339(start), limit=500)).json()
    assert answer["changedObjects"] == len(names)
    assert sorted(group["name"] for group in answer["groups"]) == sorted(names)


async def test_a9_what_is_deleted_again_and_again_counts_once(past_api: PastApi):
    await past_api.add_cluster("eu1", "core/pods")
    owner = {"ownerReferences": [{"uid": "x", "kind": "ReplicaSet", "name": "x"}]}
    names, owned = ("gone", "back"), ("owned-gone", "owned-back")
    start = await past_api.past.record(
        *(EU1.added(one, 10, body=pod(one, 10)) for one in names),
        *(EU1.added(one, 10, metadata=owner) for one in owned),
    )
    for version in (20, 30):
        for one, more in (*((one, {}) for one in names), *((one, owner) for one in owned)):
            await past_api.past.record(
                EU1.deleted(one, version, metadata=more), EU1.added(one, version + 1, metadata=more)
            )
    await past_api.past.record(
        EU1.deleted("gone", 40), EU1.deleted("owned-gone", 40, metadata=owner)
    )
    answer = (await past_api.get("/fleet/v1/changes", since=rfc3339(start))).json()
    assert sorted((group["name"], group["change"]) for group in answer["groups"]) == [
        ("back", "modified"),
        ("gone", "deleted"),
    ]
    assert (answer["changedObjects"], answer["ownedObjects"]) == (2, 2)
