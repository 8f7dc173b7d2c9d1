"""The states of objects at a point in time: from their last event before it, or from what follows.

For a time T and an object,

- the last event up to T is its state at T;
- without one, and without any later event, it has not changed since: the snapshot has its state;
- else the first event after T tells: `added` that it did not exist, `deleted` what it was. Of a
  change the state before is unknown, unless it was recorded when the change was applied, as it is
  for objects that had not changed for long (`fleetbus.prior` subjects).

Which of several events is the last is decided as the snapshot decides it (rule P2): by incarnation
and resourceVersion, not by the order in which they were stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from fleetbus.bus.connection import Bus, NoStream
from fleetbus.bus.stream_reads import last_messages, read_messages
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.admission import subject_of as event_subject_of
from fleetbus_proto.events import Event
from fleetbus_proto.prior import PriorState, decode_prior_state
from fleetbus_proto.subjects import (
    PRIOR_STREAM,
    STREAM,
    Verb,
    prior_subject,
)
from fleetbus_proto.versions import version_key
from fleetbus_query_api.past.refused import RefusedEvents
from fleetbus_query_api.past.stored_events import (
    StoredEvent,
    order_of,
    read_event,
    ref_of,
    subject_of,
)

_AT_A_TIME: Final = 8
"""Subjects that are read one by one, side by side."""
_MOST_HIDDEN: Final = 10_000
"""Events of one verb that are read because the last one of them may hide another."""
_TICK: Final = timedelta(microseconds=1)
"""A state includes the events that were stored before its time."""
_MOST_MALFORMED: Final = 1_000
"""Events that are passed over before the first valid one."""


class Existence(StrEnum):
    """Whether an object existed."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PastState:
    """The known state of an object at a point in time.

    Attributes:
        existence: whether it existed then.
        body: its JSON; empty without one, see `degraded`.
        reason: why its existence, or its body, is unknown.
        since: when the event was stored that brought this state; None if it is not on the stream.
        known_from: from then on it is known what the object was; None if it is known at the time.
        event: that event.
    """

    existence: Existence
    body: bytes = b""
    reason: str = ""
    since: datetime | None = None
    known_from: datetime | None = None
    event: Event | None = None

    @property
    def is_present(self) -> bool:
        """Whether the object is known to have existed."""
        return self.existence is Existence.PRESENT


ABSENT: Final = PastState(Existence.ABSENT)


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: datetime | None = None


class _Created(msgspec.Struct):
    metadata: _Metadata


_created = msgspec.json.Decoder(_Created)


class PastStates:
    """Reads the states of objects in the past.

    Args:
        bus: a connection.
        reader: the snapshot.
    """

    def __init__(self, *, bus: Bus, reader: SnapshotReader) -> None:
        self._bus = bus
        self._reader = reader
        self._refused = RefusedEvents(bus=bus, reader=reader)

    async def at(self, refs: Sequence[ObjectRef], time: datetime) -> dict[ObjectRef, PastState]:
        """Read the states of objects at a point in time.

        Raises:
            BusError: the stream cannot be read.
            redis.exceptions.RedisError: the snapshot cannot be read.
        """
        events = await self._last_events(refs, until=time)
        last = {ref: max(some, key=order_of) for ref, some in events.items()}
        applied = last | await self._refused.find_affected(events, time)
        states = {ref: state_of(event) if event else ABSENT for ref, event in applied.items()}
        remaining = [ref for ref in refs if ref not in states]
        if not remaining:
            return states
        later = await self._last_events(remaining)
        states |= await self.present([ref for ref in remaining if ref not in later])
        return states | await self._before(list(later), time)

    async def _last_events(
        self, refs: Sequence[ObjectRef], *, until: datetime | None = None
    ) -> dict[ObjectRef, list[StoredEvent]]:
        """The last event of each verb, of the objects that have any.

        Of a verb whose last event came late, or is malformed, the newest one, too.
        """
        subjects = [subject_of(ref) for ref in refs]
        by_ref: dict[ObjectRef, list[StoredEvent]] = {}
        hidden: list[str] = []
        for message in await last_messages(self._bus, STREAM, subjects, until=until):
            if (stored := read_event(message)) is not None:
                by_ref.setdefault(ref_of(stored.event), []).append(stored)
            else:
                hidden.append(message.subject)
        for events in by_ref.values():
            hidden += [event_subject_of(stored.event) for stored in _late(events)]
        turns = asyncio.Semaphore(_AT_A_TIME)
        read = set(hidden)
        while hidden:
            newest = await asyncio.gather(
                *(self._newest(subject, until, turns) for subject in hidden)
            )
            more: set[str] = set()
            for stored in filter(None, newest):
                events = by_ref.setdefault(ref_of(stored.event), [])
                events.append(stored)
                # What was hidden may show that another one came late, too.
                more.update(event_subject_of(stored.event) for stored in _late(events))
            hidden = sorted(more - read)
            read |= more
        return by_ref

    async def _newest(
        self, subject: str, until: datetime | None, turns: asyncio.Semaphore
    ) -> StoredEvent | None:
        """The newest event of one verb of an object, in whatever order they were stored."""
        best: StoredEvent | None = None
        async with turns:
            async for page in read_messages(self._bus, STREAM, subject, start=1, most=_MOST_HIDDEN):
                messages = [
                    message for message in page if until is None or message.stored_at < until
                ]
                events = [event for event in map(read_event, messages) if event is not None]
                best = max(events if best is None else [best, *events], key=order_of, default=None)
                if len(messages) < len(page):
                    break
        return best

    async def present(self, refs: Sequence[ObjectRef]) -> dict[ObjectRef, PastState]:
        """Read the states of the moment, from the snapshot.

        Raises:
            redis.exceptions.RedisError: the snapshot cannot be read.
        """
        places: dict[tuple[str, str], list[ObjectRef]] = {}
        for ref in refs:
            places.setdefault((ref.cluster, ref.resource), []).append(ref)
        states = dict.fromkeys(refs, ABSENT)
        for (cluster, resource), members in places.items():
            names = [(ref.namespace, ref.name) for ref in members]
            objects = await self._reader.known(cluster, resource, names)
            for ref in members:
                obj = objects.get((ref.namespace, ref.name))
                if obj is not None and obj.is_live:
                    reason = obj.entry.degraded
                    states[ref] = PastState(Existence.PRESENT, obj.entry.body, reason)
        return states

    async def _before(
        self, refs: Sequence[ObjectRef], time: datetime
    ) -> dict[ObjectRef, PastState]:
        """The states before the first event after a time, of objects without an earlier one."""
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def first(ref: ObjectRef) -> StoredEvent | None:
            async with turns:
                return await self._first_event(subject_of(ref), time)

        events = await asyncio.gather(*map(first, refs))
        states = {ref: _before(event, time) for ref, event in zip(refs, events, strict=True)}
        unknown = {
            ref: event
            for ref, event in zip(refs, events, strict=True)
            if event is not None and states[ref].existence is Existence.UNKNOWN
        }
        return states | await self._recorded(unknown)

    async def _first_event(self, subject: str, time: datetime) -> StoredEvent | None:
        """The first valid event after a time."""
        start: datetime | int = time
        for most in (1, _MOST_MALFORMED):
            async for page in read_messages(self._bus, STREAM, subject, start=start, most=most):
                event = next(filter(None, map(read_event, page)), None)
                if event is not None:
                    return event
                start = page[-1].sequence + 1
        return None

    async def _recorded(
        self, changes: Mapping[ObjectRef, StoredEvent]
    ) -> dict[ObjectRef, PastState]:
        """The states that were recorded when these changes were applied."""
        states: dict[ObjectRef, PastState] = {}
        try:
            messages = await last_messages(self._bus, PRIOR_STREAM, list(map(prior_of, changes)))
        except NoStream:  # the projector has not created it yet
            return states
        for message in messages:
            prior = decode_prior_state(message.body)
            if prior is None:
                continue
            ref = ObjectRef(
                prior.cluster, f"{prior.group}/{prior.resource}", prior.namespace, prior.name
            )
            if ref in changes and _precedes(prior, changes[ref].event):
                states[ref] = PastState(Existence.PRESENT, prior.object)
        return states


def prior_of(ref: ObjectRef) -> str:
    """The subject of the recorded states of one object."""
    group, _, plural = ref.resource.rpartition("/")
    return prior_subject(ref.cluster, group, plural, ref.namespace, ref.name)


def state_of(stored: StoredEvent) -> PastState:
    """The state after an event."""
    event = stored.event
    if event.verb is Verb.DELETED:
        return PastState(Existence.ABSENT, since=stored.stored_at, event=event)
    return PastState(
        Existence.PRESENT,
        event.object or b"",
        event.degraded,
        stored.stored_at,
        event=event,
    )


def _late(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Those that were stored after a newer one.

    A sweep publishes what a list has shown to be gone, when the object may be back and gone again;
    and a watcher that was replaced may publish for a while. Such an event is the last one of its
    verb, and hides a newer one.
    """
    return [
        event
        for event in events
        if any(
            each.sequence < event.sequence and order_of(each) > order_of(event) for each in events
        )
    ]


def created_at(body: bytes) -> datetime | None:
    """The creation time of an object, in whole seconds; None if it is unknown."""
    try:
        created = _created.decode(body).metadata.creation_timestamp
        return (
            created.astimezone(UTC) if created is not None and created.tzinfo is not None else None
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None


def _before(first: StoredEvent | None, time: datetime) -> PastState:
    """Derive the state at a time from the first event after it."""
    if first is None:
        return ABSENT  # its only event is later than the question, and was dropped meanwhile
    event = first.event
    created = created_at(event.object or b"")
    if event.verb is Verb.ADDED or (created is not None and created > time):
        return ABSENT
    if event.verb is Verb.DELETED:
        reason = "" if event.object else "its last state did not fit into the event"
        return PastState(Existence.PRESENT, event.object or b"", reason, event=event)
    how = "seen by a list" if event.verb is Verb.LISTED else "changed"
    reason = f"{how} at {event.observed_at[:19]}Z; its state before is older than the stream"
    return PastState(Existence.UNKNOWN, reason=reason, known_from=first.stored_at + _TICK)


def _precedes(prior: PriorState, event: Event) -> bool:
    """Whether a recorded state is the one before a change."""
    if prior.incarnation != event.incarnation.number:
        return False
    return version_key(prior.replaced_by) == version_key(event.resource_version)
