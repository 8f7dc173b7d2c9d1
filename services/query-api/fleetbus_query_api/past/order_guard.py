"""The decisions of the snapshot about the events of one object (rules P2 and P4).

The snapshot refuses an event that is older than what it has, and also one that a later complete
list has made obsolete. Which was complete at that moment follows from the ends of epochs before it
in the stream, so the messages are given in the order in which they were stored.

The end of an epoch counts as that of a complete list: its watcher had stored all of it. If a
message of that list was lost, the snapshot has not raised its floor, and holds until the next list
what is absent here. Floors that clean audits raise are not known here, nor that another object was
the first one of a new incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fleetbus_proto.events import EpochEnd, Event, Rank
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_newer, version_key
from fleetbus_query_api.past.stored_events import StoredEvent

_NO_RANK: Final = Rank("", 0)


class StoredEnd(NamedTuple):
    """The end of an epoch with its place in the stream."""

    end: EpochEnd
    sequence: int


@dataclass(slots=True)
class _Epochs:
    """The epochs of one scope: the last complete one, and the version of the latest list."""

    incarnation: int = 0
    completed: Rank = _NO_RANK
    floor: str = ""

    def begin(self, incarnation: int) -> bool:
        """Start again with a newer incarnation; False if this one is older."""
        if incarnation > self.incarnation:
            self.incarnation, self.completed, self.floor = incarnation, _NO_RANK, ""
        return incarnation == self.incarnation


@dataclass(slots=True)
class _Held:
    """The last event that was applied, and the lists that have held the object, by scope."""

    stored: StoredEvent
    marks: dict[str, Rank] = field(default_factory=dict[str, Rank])

    @property
    def is_live(self) -> bool:
        return self.stored.event.verb is not Verb.DELETED


def find_held(messages: Iterable[StoredEvent | StoredEnd]) -> StoredEvent | None:
    """Find the event that the snapshot has applied last.

    Args:
        messages: all events of one object, and the ends of epochs of its resource, as stored.

    Returns:
        None if it has applied none.
    """
    scopes: dict[str, _Epochs] = {}
    state: _Held | None = None
    for message in messages:
        content = message.end if isinstance(message, StoredEnd) else message.event
        epochs = scopes.setdefault(content.scope, _Epochs())
        if not epochs.begin(content.incarnation.number):
            continue
        if isinstance(message, StoredEvent):
            state = _apply(epochs, state, message)
        elif content.epoch.key > epochs.completed.key:
            epochs.completed = content.epoch
            epochs.floor = max(epochs.floor, content.epoch.resource_version, key=version_key)
    return state.stored if state is not None else None


def _apply(epochs: _Epochs, state: _Held | None, stored: StoredEvent) -> _Held | None:
    """Apply an event, or refuse it; returns what is held then."""
    event = stored.event
    if _is_of_older_list(epochs, event):
        return state
    same = state is not None and state.stored.event.incarnation.number == event.incarnation.number
    if state is None or not same:
        is_older = (
            state is not None and state.stored.event.incarnation.number > event.incarnation.number
        )
        is_refused = is_older or _is_below_floor(epochs, state, event)
        return state if is_refused else _Held(stored, _marked({}, event))
    is_applied = _is_newer(state, event)
    if is_applied and _is_below_floor(epochs, state, event):
        return state
    is_raised = _marked(state.marks, event) != state.marks
    if not is_applied and event.resource_version == state.stored.event.resource_version:
        is_applied = _is_news(epochs, state, event, is_raised=is_raised)
    state.marks = _marked(state.marks, event)
    if is_applied:
        state.stored = stored
    return state


def _is_of_older_list(epochs: _Epochs, event: Event) -> bool:
    """Whether this is an item of a list that a later one has replaced."""
    if event.verb is not Verb.LISTED:
        return False
    is_older = event.epoch.key < epochs.completed.key
    return is_older or is_newer(epochs.floor, event.epoch.resource_version)


def _is_below_floor(epochs: _Epochs, state: _Held | None, event: Event) -> bool:
    """Whether the complete list would have held it (rule P4)."""
    is_held = state is not None and state.is_live
    is_listed = event.verb is Verb.LISTED
    return not is_listed and not is_held and not is_newer(event.resource_version, epochs.floor)


def _is_newer(state: _Held, event: Event) -> bool:
    """Whether an event of the same incarnation replaces what is held (rule P2)."""
    last = state.stored.event
    is_deleted = not state.is_live and not last.left_selection
    if event.verb is Verb.LISTED and is_deleted:
        # A later list that holds the object disproves the deletion.
        if is_newer(event.epoch.resource_version, last.resource_version):
            return True
    elif event.verb is Verb.DELETED and not event.left_selection and state.is_live:
        # The same deletion again, after the list that has disproved it.
        mark = state.marks.get(event.scope)
        if mark is not None and is_newer(mark.resource_version, event.resource_version):
            return False
    return is_newer(event.resource_version, last.resource_version)


def _is_news(epochs: _Epochs, state: _Held, event: Event, *, is_raised: bool) -> bool:
    """Whether an event brings something although its version is the one that is held."""
    if event.verb is Verb.DELETED:
        return False
    last = state.stored.event
    if not state.is_live:
        return last.left_selection and not _is_below_floor(epochs, state, event)
    return is_raised and (event.degraded, event.object) != (last.degraded, last.object)


def _marked(marks: dict[str, Rank], event: Event) -> dict[str, Rank]:
    """The marks after a list has held the object (rule P5)."""
    old = marks.get(event.scope, _NO_RANK)
    if event.verb is not Verb.LISTED or event.epoch.key <= old.key:
        return marks
    return {**marks, event.scope: event.epoch}
