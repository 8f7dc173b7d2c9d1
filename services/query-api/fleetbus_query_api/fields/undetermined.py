"""Objects of the past of which it is unknown what they were, and from when on it is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef

_MOST: Final = 100
"""Objects that an answer names."""


@dataclass(frozen=True, slots=True)
class UndeterminedObject:
    """An object whose state at a time is unknown.

    Attributes:
        ref: the object.
        reason: why.
        known_from: its state is known from then on.
    """

    ref: ObjectRef
    reason: str
    known_from: datetime


@dataclass(slots=True)
class Undetermined:
    """The first such objects, and the one that is known last.

    So an answer says from when on the past of all is known, also of those that it does not name.
    """

    _first: list[UndeterminedObject] = field(default_factory=list[UndeterminedObject])
    _latest: UndeterminedObject | None = None

    def add(self, objects: Iterable[UndeterminedObject]) -> None:
        """Take more objects."""
        for one in objects:
            if self._latest is None or one.known_from > self._latest.known_from:
                self._latest = one
            if len(self._first) < _MOST:
                self._first.append(one)

    def __iter__(self) -> Iterator[UndeterminedObject]:
        yield from self._first[:-1]
        if self._latest is not None:
            is_named = len(self._first) < _MOST or self._latest in self._first
            yield self._first[-1] if is_named else self._latest

    def render(self) -> list[dict[str, str]]:
        """Render them for an answer."""
        return [
            {
                "cluster": one.ref.cluster,
                "resource": one.ref.resource,
                "namespace": one.ref.namespace,
                "name": one.ref.name,
                "reason": one.reason,
                "knownFrom": rfc3339(one.known_from),
            }
            for one in self
        ]
