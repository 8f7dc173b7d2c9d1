"""Writes each event once for the projector and the controllers of one process (rule P9).

Both receive it, in any order. Whoever comes first writes it, the other one waits for that and asks
nothing of the store: no run waits for another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fleetbus.snapshot.outcomes import STANDING, ApplyOutcome, ApplyResult, CompletedEpoch
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from fleetbus.snapshot.write import SnapshotWriter
    from fleetbus_proto.events import Event

KEPT: Final = timedelta(seconds=1)
"""An event that comes again later is written again: the snapshot may have lost it."""
STANDING_FOR: Final = timedelta(milliseconds=250)
"""Later it is not called standing any more: others may have written since (rule P10)."""
MAX_NOTES: Final = 5_000
"""Objects that are noted: five times what changes in `KEPT` at 1,000 changes a second."""

_Place: TypeAlias = tuple[str, str, str, str, str]
_State: TypeAlias = tuple[int, str, str, str, bool, str, str, str, int]


class _Note(NamedTuple):
    state: _State
    outcome: ApplyOutcome
    at: float


class AppliedHere:
    """The events that this process has just written, or is writing, to the snapshot.

    Of each object only the last one is kept: an older one is written again, and the snapshot says
    that it is stale.

    Args:
        writer: of the snapshot.
        kept: for how long an event is not written again.
        standing_for: for how long one of them counts as what the snapshot has.
        max_notes: how many are kept.
    """

    def __init__(
        self,
        writer: SnapshotWriter,
        *,
        kept: timedelta = KEPT,
        standing_for: timedelta = STANDING_FOR,
        max_notes: int = MAX_NOTES,
    ) -> None:
        self._writer = writer
        self._kept = kept.total_seconds()
        self._standing_for = standing_for.total_seconds()
        self._max_notes = max_notes
        # By object, the oldest first.
        self._notes: dict[_Place, _Note] = {}
        # What is on its way to the store; done, and never failed, once that is over.
        self._writes: dict[tuple[_Place, _State], asyncio.Future[None]] = {}
        # When `ensure` was last called for an event, by resource.
        self._ensured: dict[str, float] = {}
        self._on_completed: Callable[[CompletedEpoch], None] = _ignore

    def on_completed(self, listener: Callable[[CompletedEpoch], None]) -> None:
        """Call `listener` with each epoch that `ensure` completes; `apply` returns its own."""
        self._on_completed = listener

    async def ensure(self, events: Sequence[Event]) -> list[Event]:
        """Return once the snapshot has these events, or newer states of their objects.

        Returns:
            The events that are what the snapshot had then: it had nothing newer of their objects.

        Raises:
            StoreEmpty: as `SnapshotWriter.apply`.
            StoreFull: as `SnapshotWriter.apply`.
            redis.exceptions.RedisError: as `SnapshotWriter.apply`.
        """
        now = time.monotonic()
        self._ensured |= {event.resource_key: now for event in events}
        result = await self.apply(events)
        for epoch in result.completed:
            self._on_completed(epoch)
        since = time.monotonic() - self._standing_for
        return [
            event
            for event, outcome in zip(events, result.outcomes, strict=True)
            if outcome in STANDING and self._is_noted(event, since)
        ]

    def is_ensured(self, event: Event) -> bool:
        """Whether the controllers of this process are about to write an event, if nobody else does.

        They have written others of its resource a moment ago.
        """
        at = self._ensured.get(event.resource_key, -inf)
        return event.verb is not Verb.LISTED and at >= time.monotonic() - self._kept

    async def apply(self, events: Sequence[Event]) -> ApplyResult:
        """Write those events that were not written a moment ago.

        Returns:
            The outcome of each, also of those that were written before; and the epochs that were
            completed now.

        Raises:
            Exception: as `SnapshotWriter.apply`.
        """
        keys = [(_place_of(event), _state_of(event)) for event in events]
        if others := {write for key in keys if (write := self._writes.get(key))}:
            await asyncio.wait(others)
        since = time.monotonic() - self._kept
        outcomes = [self._outcome_of(key, since) for key in keys]
        missing = [i for i, outcome in enumerate(outcomes) if outcome is None]
        if not missing:
            return ApplyResult([outcome for outcome in outcomes if outcome], [])
        return await self._write(events, keys, outcomes, missing)

    async def _write(
        self,
        events: Sequence[Event],
        keys: Sequence[tuple[_Place, _State]],
        outcomes: list[ApplyOutcome | None],
        missing: Sequence[int],
    ) -> ApplyResult:
        write = asyncio.get_running_loop().create_future()
        mine = [keys[i] for i in missing]
        self._writes |= dict.fromkeys(mine, write)
        try:
            result = await self._writer.apply([events[i] for i in missing])
        except StoreEmpty:
            self._notes.clear()  # it has none of them any more (rule P13)
            raise
        finally:
            for key in mine:
                if self._writes.get(key) is write:
                    del self._writes[key]
            write.set_result(None)
        for i, outcome in zip(missing, result.outcomes, strict=True):
            outcomes[i] = outcome
            self._note(keys[i], outcome)
        return ApplyResult([outcome for outcome in outcomes if outcome], result.completed)

    def _note(self, key: tuple[_Place, _State], outcome: ApplyOutcome) -> None:
        place, state = key
        # A stale or refused one says nothing of what the snapshot has.
        if outcome not in STANDING:
            return
        now = time.monotonic()
        self._notes.pop(place, None)  # so that the order is that of the writes
        self._notes[place] = _Note(state, outcome, now)
        # All of `MAX_NOTES` would be megabytes of what nobody asks for any more.
        oldest, note = next(iter(self._notes.items()))
        while note.at < now - self._kept or len(self._notes) > self._max_notes:
            del self._notes[oldest]
            oldest, note = next(iter(self._notes.items()))

    def _outcome_of(self, key: tuple[_Place, _State], since: float) -> ApplyOutcome | None:
        place, state = key
        note = self._notes.get(place)
        return note.outcome if note and note.state == state and note.at >= since else None

    def _is_noted(self, event: Event, since: float) -> bool:
        return self._outcome_of((_place_of(event), _state_of(event)), since) is not None


def _place_of(event: Event) -> _Place:
    return event.cluster, event.group, event.resource, event.namespace, event.name


def _state_of(event: Event) -> _State:
    """All that `apply` looks at but the body: another list of the same state has to be counted."""
    return (
        event.incarnation.number,
        event.resource_version,
        event.uid,
        event.verb,
        event.left_selection,
        event.degraded,
        event.scope,
        event.epoch.resource_version,
        event.epoch.id,
    )


def _ignore(_epoch: CompletedEpoch) -> None:
    pass
