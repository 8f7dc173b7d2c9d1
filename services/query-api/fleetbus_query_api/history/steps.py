"""How many objects of the past to read at a time: few where the last ones were large (rule A8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleetbus.history.states import PastState
from fleetbus.run.current import ObjectRef

_FIRST: Final = 32
_SMALL_BYTES: Final = 8 * 1024**2
_LARGE_BYTES: Final = 32 * 1024**2


@dataclass(slots=True)
class Step:
    """The number of objects whose states are read next.

    Objects of one type in one cluster come one after another, and are of similar sizes.

    Attributes:
        most: objects that are read at a time, however small they are.
    """

    most: int
    size: int = _FIRST

    def adapt(self, states: Mapping[ObjectRef, PastState]) -> None:
        """Choose the next size by the bodies of the last objects."""
        read = sum(len(one.body) for one in states.values())
        if read > _LARGE_BYTES:
            self.size = max(1, self.size * _LARGE_BYTES // read)
        elif read < _SMALL_BYTES:
            self.size = min(self.most, 2 * self.size)
