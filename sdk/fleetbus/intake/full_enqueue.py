"""Enqueues everything a controller watches, from what is known (rule P12).

That is the union of the snapshot's objects, its tombstones and the keys of the controller's own
record: only the record still names what was deleted and whose tombstone has expired. All of it has
the priority of a first list; what the record proves to be reconciled is left out (rule P8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from fleetbus.controller.controller import Controller
from fleetbus.intake.intake import Intake, event_of
from fleetbus.intake.matching import Reason
from fleetbus.intake.record import Change, Record, StoredRecord, is_older
from fleetbus.intake.routing import Router
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot.reads.entries import ObjectVersion
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus.workqueue.queue import Add, Priority
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

_PAGE: Final = 500
_COMPLETE_ONCE: Final = (ResourceState.SYNCED, ResourceState.STALE, ResourceState.DEGRADED)
Name = tuple[str, str]


class _Parts(NamedTuple):
    router: Router
    intake: Intake
    record: Record
    reader: SnapshotReader


class FullEnqueue:
    """The full enqueue of one controller.

    Args:
        controller: whose watches decide.
        router: the watches of each cluster.
        intake: from an object to the queue.
        record: what the controller has seen.
        reader: the snapshot.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        router: Router,
        intake: Intake,
        record: Record,
        reader: SnapshotReader,
    ) -> None:
        self._controller = controller
        self._parts = _Parts(router, intake, record, reader)
        self._record = record
        self._reader = reader

    async def run(self, *, cluster: str = "", reason: Reason = Reason.GAP) -> None:
        """Enqueue for one cluster, or for all.

        Args:
            cluster: its name; empty for all.
            reason: `RESYNC` for a cluster that changed, `GAP` where something may have been missed,
                `NEW_CODE` for code that has not reconciled anything yet.

        Raises:
            redis.exceptions.RedisError: the store is away; to be repeated.
            QueueUnavailableError: as above.
            StoreEmpty: the store was emptied meanwhile; to be repeated.
        """
        names = [cluster] if cluster else [c.name for c in await self._reader.clusters()]
        for name in names:
            for record in await self._watched(name):
                await _Pass(self._parts, name, record, reason).run()

    async def tidy(self) -> None:
        """Forget what was seen of clusters that left and of resources that are no longer watched.

        Raises:
            redis.exceptions.RedisError: to be repeated.
        """
        if await self._reader.generation() is None:
            return  # an emptied store has no fleet: nothing follows from that
        await self._record.keep_only([cluster.name for cluster in await self._reader.clusters()])

    async def _watched(self, cluster: str) -> Iterable[ResourceRecord]:
        records = {record.key: record for record in await self._reader.resources(cluster)}
        selected: dict[str, ResourceRecord] = {}
        for watch in self._controller.watches:
            resource = watch.resource
            if resource is None:
                return records.values()
            # The snapshot may hold objects before the first heartbeat names their resource.
            selected[resource.key] = records.get(resource.key) or ResourceRecord(
                group=resource.group, version=resource.version, plural=resource.plural
            )
        return selected.values()


class _Pass:
    """One resource of one cluster."""

    def __init__(self, parts: _Parts, cluster: str, record: ResourceRecord, reason: Reason) -> None:
        self._router, self._intake, self._record, self._reader = parts
        self._cluster = cluster
        self._reason = reason
        self._key = record.key
        self._like = _event_like(cluster, record)
        self._watches = self._router.watches_of_cluster(self._like)
        self._ids: dict[str, set[int]] = {}
        """By namespace, the watches that its objects may match."""
        self._synced: dict[str, bool] = {}

    async def run(self) -> None:
        async for names in _pages(self._reader.keys(self._cluster, self._key)):
            await self._enqueue_objects(names)
        async for names in _pages(self._reader.deleted_keys(self._cluster, self._key)):
            await self._enqueue_deleted(names)
        async for stored in self._record.scan(self._cluster, self._key):
            await self._enqueue_vanished(stored)

    async def _enqueue_objects(self, names: Sequence[Name]) -> None:
        refs = [self._ref(name) for name in names]
        stored = await self._record.load(refs)
        versions = await self._reader.versions(self._cluster, self._key, names)
        # After a restart most objects are proved to be done: their bodies are not read.
        todo = [
            name
            for name, ref in zip(names, refs, strict=True)
            if name in versions and not self._is_done(stored[ref], versions[name], name[0])
        ]
        self._router.count_skipped(self._reason, len(versions) - len(todo))
        states = await self._reader.known(self._cluster, self._key, todo) if todo else {}
        live = [state.entry for state in states.values() if state.is_live]
        events = [event_of(entry, self._like, Verb.LISTED) for entry in live]
        await self._intake.take(events, reason=self._reason)

    async def _enqueue_deleted(self, names: Sequence[Name]) -> None:
        if self._reason is Reason.RESYNC:
            # A deletion that was seen is not stored: whom it woke is in the queue.
            stored = await self._record.load(self._ref(name) for name in names)
            names = [name for name in names if not stored[self._ref(name)].is_empty]
        # Sent together, they are one round trip to the store.
        entries = await asyncio.gather(
            *(self._reader.get_deleted(self._cluster, self._key, *name) for name in names)
        )
        deleted = [entry for entry in entries if entry is not None]
        events = [event_of(entry, self._like, Verb.DELETED) for entry in deleted]
        await self._intake.take(events, reason=self._reason)

    async def _enqueue_vanished(self, stored: dict[ObjectRef, StoredRecord]) -> None:
        """Enqueue what only the record still names: its deletion was never delivered."""
        names = [(ref.namespace, ref.name) for ref in stored]
        versions = await self._reader.versions(self._cluster, self._key, names)
        gone = {
            ref: record
            for ref, record in stored.items()
            if (ref.namespace, ref.name) not in versions
        }
        if not gone:
            return
        requests: dict[Add, None] = {}
        for ref, record in gone.items():
            last_seen = record.last_seen
            if last_seen is None or last_seen.is_member or last_seen.is_left:
                like = msgspec.structs.replace(self._like, namespace=ref.namespace, name=ref.name)
                own_request = self._router.own_request(like)
                requests[Add(own_request, Priority.INITIAL)] = None
            for targets in (last_seen.members if last_seen else {}).values():
                for request in self._router.requests(targets or ()):
                    requests[Add(request, Priority.INITIAL, cause=ref.cluster)] = None
        await self._intake.enqueue(list(requests))
        # Until the list is complete absence means nothing, and `left` may still be undelivered.
        await self._record.save(
            [
                Change(ref, record, None)
                for ref, record in gone.items()
                if await self._is_synced(ref.namespace)
            ]
        )

    def _is_done(self, stored: StoredRecord, standing: ObjectVersion, namespace: str) -> bool:
        """Whether nothing that matters to a watch has changed since a successful reconcile."""
        last_seen = stored.last_seen
        if self._watches is None or last_seen is None or last_seen.version != standing.version:
            return False
        if last_seen.members.keys() != self._ids_of(namespace):
            return False
        if self._reason is Reason.GAP and any(
            targets is not None for targets in last_seen.members.values()
        ):
            return False
        if not (last_seen.is_left or last_seen.is_member):
            return self._reason is not Reason.NEW_CODE
        is_read = stored.read is not None and not is_older(stored.read, last_seen.woken)
        return is_read and self._reason is not Reason.NEW_CODE

    def _ids_of(self, namespace: str) -> set[int]:
        if namespace not in self._ids:
            self._ids[namespace] = {
                watch.id
                for watch in self._watches or ()
                if watch.namespaces is None or namespace in watch.namespaces
            }
        return self._ids[namespace]

    async def _is_synced(self, namespace: str) -> bool:
        if namespace not in self._synced:
            states = await self._reader.freshness([self._cluster], self._key, namespace=namespace)
            self._synced[namespace] = states[self._cluster].state in _COMPLETE_ONCE
        return self._synced[namespace]

    def _ref(self, name: Name) -> ObjectRef:
        return ObjectRef(self._cluster, self._key, *name)


async def _pages(names: AsyncIterator[Name]) -> AsyncIterator[list[Name]]:
    page: list[Name] = []
    async for name in names:
        page.append(name)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _event_like(cluster: str, record: ResourceRecord) -> Event:
    """An event of the resource without an object."""
    return Event(
        cluster=cluster,
        incarnation=Incarnation(0, ""),
        group=record.group,
        version=record.version,
        resource=record.plural,
        kind=record.kind,
        namespace="",
        name="",
        uid="",
        resource_version="",
        verb=Verb.LISTED,
        epoch=Rank("", 0),
        observed_at="",
        object=None,
    )
