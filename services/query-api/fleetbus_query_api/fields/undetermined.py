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
        for obj in objects:
            if self._latest is None or obj.known_from > self._latest.known_from:
                self._latest = obj
            if len(self._first) < _MOST:
                self._first.append(obj)

    def __iter__(self) -> Iterator[UndeterminedObject]:
        yield from self._first[:-1]
        if self._latest is not None:
            is_named = len(self._first) < _MOST or self._latest in self._first
            yield self._first[-1] if is_named else self._latest

    def render(self) -> list[dict[str, str]]:
        """Render them for an answer."""
        return [
            {
                "cluster": obj.ref.cluster,
                "resource": obj.ref.resource,
                "namespace": obj.ref.namespace,
                "name": obj.ref.name,
                "reason": obj.reason,
                "knownFrom": rfc3339(obj.known_from),
            }
            for obj in self
        ]
