"""Finds events that the snapshot refused because a later list was complete (rules P2 and P4).

A watcher that was replaced may publish for a while. Where the list of its successor is complete by
then, the snapshot refuses what it says of objects that the list lacks, and its own list. On the
stream such an event is the last one of its object all the same.

Few events are doubtful, and only for those more is read, step by step:

- The snapshot has the last complete epoch of every scope. An event of the same lineage, or of a
  version that its list had not reached, was not refused. That is one read of the store for any
  number of objects, and mostly the only one.
- What was stored before that epoch began may have met an earlier one: the last message of the
  resource's epochs before the time tells, one batched read for all. If that is a page of an audit,
  or of the event's own epoch, the event counts as applied.
- Of what is left all events of the object are read, with the ends of epochs, and decided as the
  snapshot did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from fleetbus.bus.connection import Bus
from fleetbus.bus.stream_reads import StoredMessage, last_messages, read_messages
from fleetbus.process.clock import now_ms
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot.reads.past import CompletedRank
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import EpochEnd, Event, Rank
from fleetbus_proto.subjects import STREAM, Verb, epochs_subject
from fleetbus_proto.versions import is_newer
from fleetbus_query_api.past.order_guard import StoredEnd, find_held
from fleetbus_query_api.past.stored_events import StoredEvent, order_of, read_event, subject_of

_AT_A_TIME: Final = 8
"""Subjects that are read side by side."""
_MOST_EVENTS: Final = 1_000
"""Event cap per object; beyond it the last event wins."""
_MOST_BYTES: Final = 16 * 1024**2
"""Byte cap per object; beyond it the last event wins. Eight objects are in memory at a time."""
_MOST_EPOCHS: Final = 2_000
"""Cap of epoch ends and audit pages per resource; beyond it the last event wins."""
_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RefusedEvents:
    """Finds events that the snapshot refused.

    Args:
        bus: a connection.
        reader: the snapshot.
    """

    def __init__(self, *, bus: Bus, reader: SnapshotReader) -> None:
        self._bus = bus
        self._reader = reader

    async def find_affected(
        self, events: Mapping[ObjectRef, Sequence[StoredEvent]], until: datetime
    ) -> dict[ObjectRef, StoredEvent | None]:
        """Find the objects that may have refused events, and the event that was applied last.

        Args:
            events: the last events of each verb before a time; at least one of each object.
            until: that time.

        Returns:
            None for an object of which nothing was applied.

        Raises:
            BusError: the stream cannot be read.
            redis.exceptions.RedisError: the snapshot cannot be read.
        """
        scopes = {_scope_of(event) for some in events.values() for event in some}
        completed = await self._reader.past.completed_ranks(scopes)
        affected: set[ObjectRef] = set()
        earlier: dict[ObjectRef, Sequence[StoredEvent]] = {}
        for ref, some in events.items():
            replaced = [event for event in some if _is_replaced_by(event, completed)]
            if any(_is_after(event, completed[_scope_of(event)]) for event in replaced):
                affected.add(ref)
            elif max(some, key=order_of) in replaced:
                earlier[ref] = some
        affected |= await self._met_earlier_list(earlier, until)
        return await self._decide(affected, until)

    async def _met_earlier_list(
        self, events: Mapping[ObjectRef, Sequence[StoredEvent]], until: datetime
    ) -> set[ObjectRef]:
        """The objects with events that the last list before a time had made obsolete."""
        subjects = list({_epochs_of(ref) for ref in events})
        ends = {
            message.subject: _read_end(message)
            for message in await last_messages(self._bus, STREAM, subjects, until=until)
        }
        return {
            ref
            for ref, some in events.items()
            if (last := ends.get(_epochs_of(ref))) is not None
            and (_is_missing(some, last) or any(_came_after(event, last) for event in some))
        }

    async def _decide(
        self, affected: Collection[ObjectRef], until: datetime
    ) -> dict[ObjectRef, StoredEvent | None]:
        """Decide as the snapshot did, from all events of these objects."""
        turns = asyncio.Semaphore(_AT_A_TIME)
        subjects = list({_epochs_of(ref) for ref in affected})
        read = await asyncio.gather(*(self._ends(subject, until, turns) for subject in subjects))
        ends = {
            subject: epoch_ends
            for subject, epoch_ends in zip(subjects, read, strict=True)
            if epoch_ends is not None
        }
        outcomes: dict[ObjectRef, StoredEvent | None] = {}

        async def decide(ref: ObjectRef) -> None:
            async with turns:
                events = await self._events(subject_of(ref), until)
            if events is not None:
                messages = [*events, *ends[_epochs_of(ref)]]
                outcomes[ref] = find_held(sorted(messages, key=lambda message: message.sequence))

        await asyncio.gather(*(decide(ref) for ref in affected if _epochs_of(ref) in ends))
        return outcomes

    async def _events(self, subject: str, until: datetime) -> list[StoredEvent] | None:
        """All events of an object before a time; None if there are too many."""
        events: list[StoredEvent] = []
        size = 0
        async for page in read_messages(self._bus, STREAM, subject, start=1, most=_MOST_EVENTS):
            messages = [message for message in page if message.stored_at < until]
            size += sum(len(message.body) for message in messages)
            events += filter(None, map(read_event, messages))
            if len(messages) < len(page):
                return events
            if size > _MOST_BYTES:
                return None
        return events if len(events) < _MOST_EVENTS else None

    async def _ends(
        self, subject: str, until: datetime, turns: asyncio.Semaphore
    ) -> list[StoredEnd] | None:
        """The ends of epochs of a resource before a time; None if there is too much to read."""
        ends: list[StoredEnd] = []
        count = 0
        async with turns:
            async for page in read_messages(self._bus, STREAM, subject, start=1, most=_MOST_EPOCHS):
                messages = [message for message in page if message.stored_at < until]
                count += len(messages)
                ends += filter(None, map(_read_end, messages))
                if len(messages) < len(page):
                    return ends
        return ends if count < _MOST_EPOCHS else None


def _is_replaced_by(
    stored: StoredEvent, completed: Mapping[tuple[str, str, str], CompletedRank]
) -> bool:
    epoch = completed.get(_scope_of(stored))
    return epoch is not None and _is_replaced(stored.event, epoch.incarnation, epoch.rank)


def _is_replaced(event: Event, incarnation: int, rank: Rank | None) -> bool:
    """Whether an event that came after the end of this epoch may be refused."""
    if event.incarnation.number != incarnation or rank is None:
        return event.incarnation.number < incarnation
    if event.epoch.key >= rank.key:
        return False
    is_listed = event.verb is Verb.LISTED
    return is_listed or not is_newer(event.resource_version, rank.resource_version)


def _is_after(stored: StoredEvent, completed: CompletedRank) -> bool:
    """Whether an event was stored after what replaces its lineage was claimed (rules W7, W23)."""
    if stored.event.incarnation.number < completed.incarnation:
        claimed = completed.incarnation
    else:
        claimed = completed.rank.id if completed.rank is not None else 0
    return stored.stored_at >= _EPOCH + claimed * _MS


def _came_after(stored: StoredEvent, last: StoredEnd) -> bool:
    """Whether an event was stored after the end of an epoch that may have made it obsolete."""
    event, end = stored.event, last.end
    is_after = event.scope == end.scope and stored.sequence > last.sequence
    return is_after and _is_replaced(event, end.incarnation.number, end.epoch)


def _is_missing(events: Sequence[StoredEvent], last: StoredEnd) -> bool:
    """Whether a list lacks an object that exists by these events.

    Either the snapshot had refused the last one, or the object is still to be swept.
    """
    event = max(events, key=order_of).event
    is_live = event.verb is not Verb.DELETED and event.scope == last.end.scope
    return is_live and _is_replaced(event, last.end.incarnation.number, last.end.epoch)


def _scope_of(stored: StoredEvent) -> tuple[str, str, str]:
    event = stored.event
    return event.cluster, event.resource_key, event.scope


def _epochs_of(ref: ObjectRef) -> str:
    group, _, plural = ref.resource.rpartition("/")
    return epochs_subject(ref.cluster, group, plural)


def _read_end(message: StoredMessage) -> StoredEnd | None:
    """The end of an epoch; None if it is invalid, and so was ignored, or a page of an audit."""
    try:
        end = admit(message.subject, message.headers, message.body, now_ms=now_ms())
    except MalformedMessage:
        return None
    return StoredEnd(end, message.sequence) if isinstance(end, EpochEnd) else None
