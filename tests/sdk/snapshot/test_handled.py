"""The messages that a process has handled are kept as runs, until a checkpoint covers them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from fleetbus.snapshot.offsets.handled import Handled

SEQUENCES = st.integers(1, 40)


@given(st.lists(st.tuples(st.lists(SEQUENCES, max_size=8), st.integers(0, 40))))
def test_b17_the_end_is_before_the_first_message_that_was_not_handled(
    steps: list[tuple[list[int], int]],
) -> None:
    handled, every, low = Handled(), set[int](), 0
    for sequences, acknowledged in steps:
        handled.note(sequences)
        every.update(sequences)
        low = expected = max(low, acknowledged)
        while expected + 1 in every:
            expected += 1
        assert handled.end_after(low) == expected
        low = expected


def test_b17_a_checkpoint_that_is_not_written_for_hours_costs_what_its_shard_has_not_handled():
    handled = Handled()
    for first in range(1, 100_001, 20):
        handled.note(range(first + 1, first + 20))  # a message of 20 is of the shard that is away
    assert len(handled) == 5_000
    handled.note(range(1, 100_001, 20))
    assert len(handled) == 1
    assert handled.end_after(0) == 100_000
    assert len(handled) == 0


def test_b17_too_many_holes_are_forgotten_from_the_end():
    handled = Handled(max_runs=3)
    handled.note([1, 3, 5, 7, 9])
    handled.note([2, 4, 6, 8])
    assert handled.end_after(0) == 6
