"""Limits the number of past objects that are read at a time: few where they are large (rule A8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from fleetbus.run.current import ObjectRef
from fleetbus_query_api.past.states import PastState

T = TypeVar("T")

STEP_BYTES: Final = 8 * 1024**2
"""Size of the known states of the objects of a step; a larger object is read alone."""
LARGE_BYTES: Final = 32 * 1024**2
"""States of a step that are larger together make the next one smaller."""


@dataclass(slots=True)
class Step:
    """Divides objects into those whose states are read at a time.

    Attributes:
        size: how many come next, at most: more and more, as requests are dear.
        most: the largest size.
    """

    size: int
    most: int

    def divide(self, members: Sequence[T], sizes: Mapping[T, int]) -> Iterator[list[T]]:
        """Yield all of them, in order.

        Args:
            members: stand for the objects.
            sizes: the bytes of a state that is known, today's or the last one.
        """
        step: list[T] = []
        step_bytes = 0
        for member in members:
            size = sizes.get(member, 0)
            if step and (len(step) >= self.size or step_bytes + size > STEP_BYTES):
                yield step
                step, step_bytes = [], 0
            step.append(member)
            step_bytes += size
        if step:
            yield step

    def adapt(self, states: Mapping[ObjectRef, PastState]) -> None:
        """Choose the next size by the states that were read: they may have been larger then.

        Objects of one type in one cluster come one after another, and are of similar sizes.
        """
        read = sum(len(state.body) for state in states.values())
        if read > LARGE_BYTES:
            self.size = max(1, self.size * LARGE_BYTES // read)
        elif read < STEP_BYTES:
            self.size = min(self.most, 2 * self.size)
