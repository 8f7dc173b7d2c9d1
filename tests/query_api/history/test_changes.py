"""Comparisons of many and of large objects (rule A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus.history.states import Existence, PastState
from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus_query_api.history.changes import Step
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi

EU1 = Source()
LARGE = b"x" * 1024**2


def states(count: int, body: bytes) -> dict[ObjectRef, PastState]:
    refs = (ObjectRef("eu1", "core/pods", "prod", f"p{n}") for n in range(count))
    return {ref: PastState(Existence.PRESENT, body) for ref in refs}


def test_a9_few_large_objects_are_read_at_a_time_and_many_small_ones():
    step = Step()
    for _ in range(8):
        step.adapt(states(step.size, LARGE), states(step.size, LARGE))
    assert 2 * step.size * len(LARGE) <= 32 * 1024**2
    assert step.size >= 1
    for _ in range(10):
        step.adapt(states(step.size, b"{}"), {})
    assert step.size == 1000


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
