"""Look, enqueue, remember, in this order: what the record says is never ahead of the queue (P8).

Several processes of a controller handle changes of one object at a time, in any order. So a write
to the record names what it was decided upon, and is decided anew if that has changed; and what had
no entry is compared with the snapshot once it has one: a newer state that another process took for
one of no interest would never be told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fleetbus.errors import StoreError
from fleetbus.intake.record import (
    NEVER,
    UNSEEN,
    Change,
    LastSeen,
    Record,
    StoredRecord,
    is_older,
    new_revision,
)
from fleetbus.intake.routing import Reason, Router
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot.reads.reader import Entry, SnapshotReader
from fleetbus.workqueue.queue import BATCH, Add, Queue
from fleetbus_proto.events import Event, Incarnation
from fleetbus_proto.subjects import Verb

_TRIES: Final = 20
"""Another process may write the same entries at the same time, but not for ever."""


class Intake:
    """The way of one controller from events to its queue.

    Args:
        router: from an object to requests.
        queue: where they go.
        record: what the controller has seen.
        reader: the snapshot.
    """

    def __init__(
        self, router: Router, *, queue: Queue, record: Record, reader: SnapshotReader
    ) -> None:
        self._router = router
        self._queue = queue
        self._record = record
        self._reader = reader

    async def take(
        self,
        events: Iterable[Event],
        *,
        reason: Reason = Reason.EVENT,
        traces: Sequence[str] = (),
        after: Awaitable[object] | None = None,
    ) -> None:
        """Enqueue what events wake, and remember that they were seen.

        Args:
            events: in the order of the stream.
            reason:  why they are looked at.
            traces: of each event, for the runs it wakes; empty for none.
            after: what must have succeeded before anything is enqueued; it and the first look go
                to the store at one time.

        Raises:
            redis.exceptions.RedisError: the store is away; to be repeated (P9).
            StoreError: as above.
            QueueUnavailableError: as above.
        """
        listed = list(events)
        of = traces or [""] * len(listed)
        todo = [
            (event, trace)
            for event, trace in zip(listed, of, strict=True)
            if self._router.watches(event)
        ]
        held = await self._look_beside(after, todo)
        for _ in range(_TRIES):
            if not todo:
                return
            todo = await self._take_once(todo, held, reason)
            held = await self._look(todo)
        raise StoreError("the record of this controller changes faster than it can be written")

    async def enqueue(self, adds: Sequence[Add]) -> None:
        """Add to the queue."""
        for at in range(0, len(adds), BATCH):
            await self._queue.add(adds[at : at + BATCH])

    async def _look_beside(
        self, other: Awaitable[object] | None, todo: Sequence[tuple[Event, str]]
    ) -> dict[ObjectRef, StoredRecord]:
        looking = asyncio.create_task(self._look(todo), name="look at the record")
        try:
            if other is not None:
                await other
            return await looking
        except BaseException:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            raise

    async def _look(self, todo: Sequence[tuple[Event, str]]) -> dict[ObjectRef, StoredRecord]:
        return await self._record.load({ref_of(event) for event, _ in todo}) if todo else {}

    async def _take_once(
        self, todo: Sequence[tuple[Event, str]], held: dict[ObjectRef, StoredRecord], reason: Reason
    ) -> list[tuple[Event, str]]:
        """One turn; answers what has to be looked at again."""
        seen: dict[ObjectRef, LastSeen | None] = {}
        adds: list[Add] = []
        for event, trace in todo:
            ref = ref_of(event)
            before = held[ref]
            if ref in seen:  # an earlier event of this batch
                before = _after(before, seen[ref])
            decision = await self._router.evaluate(event, before, reason, trace)
            adds += decision.adds
            if decision.is_complete:
                seen[ref] = decision.last_seen
        if not await self._announce(held, seen):
            return list(todo)
        await self.enqueue(adds)
        changes = [
            Change(ref, held[ref], last_seen)
            for ref, last_seen in seen.items()
            if last_seen != held[ref].last_seen or (last_seen is None and held[ref].read)
        ]
        conflicts = await self._record.save(changes)
        again = [(event, trace) for event, trace in todo if ref_of(event) in conflicts]
        doubtful = _doubtful(todo, held, seen).items()
        told = {ref: last_seen for ref, last_seen in doubtful if ref not in conflicts}
        return again + [(event, "") for event in await self._overtaken(told, todo)]

    async def _announce(
        self, held: dict[ObjectRef, StoredRecord], seen: Mapping[ObjectRef, LastSeen | None]
    ) -> bool:
        """Let runs know that an object leaves or comes back before they are enqueued.

        `held` is what the record has afterwards. False if somebody else has written meanwhile.
        """
        turned: list[Change] = []
        for ref, last_seen in seen.items():
            before = held[ref].last_seen or UNSEEN
            is_left = last_seen is not None and last_seen.is_left
            if before.reports_left != is_left:
                told = msgspec.structs.replace(before, announced=is_left)
                turned.append(Change(ref, held[ref], told, new_revision(reports_left=is_left)))
        if turned and await self._record.save(turned):
            return False
        for change in turned:
            held[change.ref] = change.stored._replace(
                last_seen=change.last_seen, revision=change.revision
            )
        return True

    async def _overtaken(
        self, told: Mapping[ObjectRef, LastSeen], todo: Sequence[tuple[Event, str]]
    ) -> list[Event]:
        """Of what is doubtful, that whose newer state the snapshot has."""
        if not told:  # as of nearly every batch
            return []
        like = {ref_of(event): event for event, _ in todo}
        places: dict[tuple[str, str], list[ObjectRef]] = {}
        for ref in told:
            places.setdefault((ref.cluster, ref.resource), []).append(ref)
        newer: list[Event] = []
        for place, refs in places.items():
            names = [(ref.namespace, ref.name) for ref in refs]
            versions = await self._reader.versions(*place, names)
            for ref, name in zip(refs, names, strict=True):
                standing, last_seen = versions.get(name), told[ref]
                if standing is None and last_seen.is_gone:
                    continue
                if standing is None:
                    # A complete list has passed it: of what it was nothing is left (rule P4).
                    newer.append(_gone(like[ref], last_seen))
                # A live state leaves no trace only where a selector can leave it out.
                elif (not standing.is_live or self._router.selects(like[ref])) and is_older(
                    last_seen.version, standing.version
                ):
                    newer += await self._now(like[ref])
        return newer

    async def _now(self, event: Event) -> list[Event]:
        """An object as the snapshot has it; nothing if it has it no more, and so will be told."""
        place = (event.cluster, event.resource_key, event.namespace, event.name)
        if entry := await self._reader.get(*place):
            return [event_of(entry, event, Verb.MODIFIED)]
        if entry := await self._reader.get_deleted(*place):
            return [event_of(entry, event, Verb.DELETED)]
        return []


def _after(held: StoredRecord, last_seen: LastSeen | None) -> StoredRecord:
    """What the record holds once this is written.

    A read proves nothing any more if runs are told otherwise about leaving than that one was.
    """
    was_told = held.last_seen is not None and held.last_seen.reports_left
    is_told = last_seen is not None and last_seen.reports_left
    return StoredRecord(last_seen, held.read if is_told == was_told else None, held.revision)


def _doubtful(
    todo: Sequence[tuple[Event, str]],
    stored: Mapping[ObjectRef, StoredRecord],
    seen: Mapping[ObjectRef, LastSeen | None],
) -> dict[ObjectRef, LastSeen]:
    """What the record has now of objects of which a newer state may have left no trace in it.

    Those that are new to it; and those of which nothing new was reported: their entry may be that
    of a process that failed before it had compared it.
    """
    found: dict[ObjectRef, LastSeen] = {}
    for event, _ in todo:
        ref = ref_of(event)
        before, now = stored[ref].last_seen, seen.get(ref, stored[ref].last_seen)
        version = (event.incarnation.number, event.resource_version)
        known = before.version if before is not None else NEVER
        if now is not None and now.is_seen and (known == NEVER or not is_older(known, version)):
            found[ref] = now
    return found


def ref_of(event: Event) -> ObjectRef:
    """The object that an event is of."""
    return ObjectRef(event.cluster, event.resource_key, event.namespace, event.name)


def event_of(entry: Entry, like: Event, verb: Verb) -> Event:
    """What the snapshot holds of an object, in the form that watches look at."""
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
    """The end of an object whose deletion nobody remembers, at the version that was seen."""
    incarnation, version = last_seen.version
    return msgspec.structs.replace(
        event,
        incarnation=Incarnation(incarnation, ""),
        resource_version=version,
        verb=Verb.DELETED,
        final_state_unknown=True,
    )
