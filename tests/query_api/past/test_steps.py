"""Number of past objects that are read at a time (rule A8)."""

from __future__ import annotations

from fleetbus.run.current import ObjectRef
from fleetbus_query_api.past.states import Existence, PastState
from fleetbus_query_api.past.steps import Step

MIB = 1024**2
LARGE = PastState(Existence.PRESENT, b"x" * MIB)
SMALL = PastState(Existence.PRESENT, b"{}")


def lengths(count: int, size: int) -> list[int]:
    sizes = dict.fromkeys(range(count), size)
    return [len(step) for step in Step(1_000, 4_000).divide(list(sizes), sizes)]


def states(count: int, state: PastState) -> dict[ObjectRef, PastState]:
    return {ObjectRef("eu1", "core/pods", "prod", f"p{n}"): state for n in range(count)}


def test_a8_few_large_objects_are_read_at_a_time_and_many_small_ones():
    assert lengths(40, MIB) == [8] * 5
    assert lengths(2_500, 2) == [1_000, 1_000, 500]
    assert lengths(2, 64 * MIB) == [1, 1]


def test_a8_objects_that_were_larger_than_they_are_make_steps_smaller_for_a_while():
    step = Step(64, 4_000)
    step.adapt(states(64, LARGE))
    assert step.size * MIB <= 32 * MIB
    for _ in range(10):
        step.adapt(states(step.size, SMALL))
    assert step.size == 4_000
