"""Evaluates events, enqueues requests and stores what was seen, in one step (rule P8).

Several processes of a controller handle changes of one object at a time, in any order. So that step
names the revision of the record it is based on, and the object is evaluated again if that has
changed. An object that is new to the record is compared with the snapshot afterwards: another
process may have seen a newer state and taken it for one that does not matter; it left no trace in
the record and would never be delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fleetbus.errors import StoreError
from fleetbus.intake.controller_store import ControllerStore
from fleetbus.intake.matching import Reason
from fleetbus.intake.record import (
    NEVER,
    Change,
    LastSeen,
    Records,
    StoredRecord,
    is_older,
)
from fleetbus.intake.routing import Router
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot.reads.entries import Entry, ObjectVersion
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.workqueue.queue import Add
from fleetbus_proto.events import Event, Incarnation
from fleetbus_proto.subjects import Verb

_TRIES: Final = 20
"""Another process may write the same entries at the same time, but not this often in a row."""


class Intake:
    """Turns the events of one controller into items of its queue.

    Args:
        router: finds the requests that an object wakes.
        store: where they go, with what the controller has seen.
        reader: the snapshot.
    """

    def __init__(self, router: Router, *, store: ControllerStore, reader: SnapshotReader) -> None:
        self._router = router
        self._store = store
        self._reader = reader

    async def take(
        self,
        events: Iterable[Event],
        *,
        reason: Reason = Reason.EVENT,
        traces: Sequence[str] = (),
        records: Records | None = None,
    ) -> None:
        """Enqueue what events wake, and store that they were seen.

        Args:
            events: in the order of the stream.
            reason: why they are evaluated.
            traces: of each event, for the runs it wakes; empty for none.
            records: what was read of them already.

        Raises:
            redis.exceptions.RedisError: the store is away; to be repeated (P9).
            StoreError: as above.
            QueueUnavailableError: as above.
        """
        listed = list(events)
        of_each = traces or [""] * len(listed)
        todo = [
            (event, trace)
            for event, trace in zip(listed, of_each, strict=True)
            if self._router.watches(event)
        ]
        found = records.get(self._store.record) if records else None
        stored = found if isinstance(found, dict) else await self._load(todo)
        for _ in range(_TRIES):
            if not todo:
                return
            todo = await self._take_once(todo, stored, reason)
            stored = await self._load(todo)
        raise StoreError("the record of this controller changes faster than it can be written")

    async def enqueue(self, adds: Sequence[Add]) -> None:
        """Add to the queue."""
        await self._store.enqueue([(add, None) for add in adds], [])

    async def _load(self, todo: Sequence[tuple[Event, str]]) -> dict[ObjectRef, StoredRecord]:
        return await self._store.load({ref_of(event) for event, _ in todo}) if todo else {}

    async def _take_once(
        self,
        todo: Sequence[tuple[Event, str]],
        stored: dict[ObjectRef, StoredRecord],
        reason: Reason,
    ) -> list[tuple[Event, str]]:
        """Evaluate, enqueue, store; returns the events that have to be evaluated again."""
        states: dict[ObjectRef, LastSeen | None] = {}
        adds: list[tuple[Add, ObjectRef | None]] = []
        for event, trace in todo:
            ref = ref_of(event)
            before = stored[ref]
            if ref in states:  # an earlier event of this batch
                before = _after(before, states[ref])
            routed = await self._router.evaluate(event, before, reason, trace)
            adds += [(add, ref) for add in routed.adds]
            if routed.is_complete:
                states[ref] = routed.last_seen
        # Also those of which nothing new is stored: a run may have read a newer state (rule P10).
        woken = {ref for add, ref in adds if add.trigger}
        changes = [
            change
            for ref, last_seen in states.items()
            if not (change := Change(ref, stored[ref], last_seen)).keeps_all or ref in woken
        ]
        conflicts: set[ObjectRef] = set()
        if adds or changes:
            conflicts = await self._store.enqueue(adds, changes)
        again = [(event, trace) for event, trace in todo if ref_of(event) in conflicts]
        doubtful = _doubtful(todo, stored, states).items()
        unchecked = {ref: last_seen for ref, last_seen in doubtful if ref not in conflicts}
        return again + [(event, "") for event in await self._overtaken(unchecked, todo)]

    async def _overtaken(
        self, unchecked: Mapping[ObjectRef, LastSeen], todo: Sequence[tuple[Event, str]]
    ) -> list[Event]:
        """Find the newer states, or the end, that the snapshot has of these objects."""
        if not unchecked:  # as of nearly every batch
            return []
        like = {ref_of(event): event for event, _ in todo}
        places: dict[tuple[str, str], list[ObjectRef]] = {}
        for ref in unchecked:
            places.setdefault((ref.cluster, ref.resource), []).append(ref)
        newer: list[Event] = []
        for place, refs in places.items():
            names = [(ref.namespace, ref.name) for ref in refs]
            versions = await self._reader.versions(*place, names)
            for ref, name in zip(refs, names, strict=True):
                newer += await self._newer(like[ref], unchecked[ref], versions.get(name))
        return newer

    async def _newer(
        self, event: Event, last_seen: LastSeen, standing: ObjectVersion | None
    ) -> list[Event]:
        if standing is None:
            # A complete list has passed it: of what it was nothing is left (rule P4).
            return [] if last_seen.is_gone else [_gone(event, last_seen)]
        # A live state leaves no trace in the record only where a selector can leave it out.
        may_be_untold = not standing.is_live or self._router.selects(event)
        is_newer = may_be_untold and is_older(last_seen.version, standing.version)
        return await self._now(event) if is_newer else []

    async def _now(self, event: Event) -> list[Event]:
        """An object as the snapshot has it; nothing if it has gone: its end will be delivered."""
        place = (event.cluster, event.resource_key, event.namespace, event.name)
        if entry := await self._reader.get(*place):
            return [event_of(entry, event, Verb.MODIFIED)]
        if entry := await self._reader.get_deleted(*place):
            return [event_of(entry, event, Verb.DELETED)]
        return []


def _after(stored: StoredRecord, last_seen: LastSeen | None) -> StoredRecord:
    """The record once this is stored.

    A stored read proves nothing any more if runs receive the opposite `left` from now on.
    """
    was_reported = stored.last_seen is not None and stored.last_seen.is_left
    is_reported = last_seen is not None and last_seen.is_left
    return StoredRecord(
        last_seen, stored.read if is_reported == was_reported else None, stored.revision
    )


def _doubtful(
    todo: Sequence[tuple[Event, str]],
    stored: Mapping[ObjectRef, StoredRecord],
    states: Mapping[ObjectRef, LastSeen | None],
) -> dict[ObjectRef, LastSeen]:
    """Find the objects of which a newer state may have left no trace in the record.

    They are those that are new to it, and those of which nothing newer was delivered: their entry
    may be that of a process that died before it compared it with the snapshot.
    """
    doubtful: dict[ObjectRef, LastSeen] = {}
    for event, _ in todo:
        ref = ref_of(event)
        before, now = stored[ref].last_seen, states.get(ref, stored[ref].last_seen)
        version = (event.incarnation.number, event.resource_version)
        known_version = before.version if before is not None else NEVER
        if now is not None and (known_version == NEVER or not is_older(known_version, version)):
            doubtful[ref] = now
    return doubtful


def ref_of(event: Event) -> ObjectRef:
    """The object of an event."""
    return ObjectRef(event.cluster, event.resource_key, event.namespace, event.name)


def event_of(entry: Entry, like: Event, verb: Verb) -> Event:
    """An entry of the snapshot as an event, which is what watches are asked about."""
    return msgspec.structs.replace(
        like,
        incarnation=Incarnation(entry.incarnation, ""),
        namespace=entry.namespace,
        name=entry.name,
        uid=entry.uid,
        resource_version=entry.resource_version,
        verb=verb,
        object=entry.body or None,
        degraded=entry.degraded,
    )


def _gone(event: Event, last_seen: LastSeen) -> Event:
    """The deletion of an object of which no tombstone is left, at the version that was seen."""
    incarnation, version = last_seen.version
    return msgspec.structs.replace(
        event,
        incarnation=Incarnation(incarnation, ""),
        resource_version=version,
        verb=Verb.DELETED,
        final_state_unknown=True,
    )
