"""Enqueue everything a controller watches, from what the snapshot knows (rule P12).

At the priority of a first list; tombstones are part of it, so that a deletion whose event this
controller never got still wakes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

from fleetbus.controller import Controller
from fleetbus.routing import Router
from fleetbus.snapshot.read import Entry, ListQuery, SnapshotReader
from fleetbus.snapshot.records import ResourceRecord
from fleetbus.workqueue.queue import Add, Queue
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

_PAGE: Final = 500


class FullEnqueue:
    """The full enqueue of one controller.

    Args:
        controller: whose watches decide.
        router: from an object to requests.
        queue: where they go.
        reader: the snapshot.
    """

    def __init__(
        self, controller: Controller, router: Router, queue: Queue, reader: SnapshotReader
    ) -> None:
        self._controller = controller
        self._router = router
        self._queue = queue
        self._reader = reader

    async def run(self, *, cluster: str = "") -> None:
        """Enqueue for one cluster, or for all.

        Raises:
            redis.exceptions.RedisError: the store is away; to be repeated.
            QueueUnavailableError: as above.
            StoreEmpty: the store was emptied meanwhile; to be repeated.
        """
        names = [cluster] if cluster else [c.name for c in await self._reader.clusters()]
        for name in names:
            for record in await self._watched(name):
                await self._enqueue(name, record)

    async def _watched(self, cluster: str) -> Iterable[ResourceRecord]:
        known = {record.key: record for record in await self._reader.resources(cluster)}
        found: dict[str, ResourceRecord] = {}
        for watch in self._controller.watches:
            resource = watch.resource
            if resource is None:
                return known.values()
            # The snapshot may hold objects before the first heartbeat tells of their resource.
            found[resource.key] = known.get(resource.key) or ResourceRecord(
                group=resource.group, version=resource.version, plural=resource.plural
            )
        return found.values()

    async def _enqueue(self, cluster: str, record: ResourceRecord) -> None:
        adds: list[Add] = []
        async for entry in self._entries(cluster, record):
            adds += await self._router.full(_event(entry, record))
            if len(adds) >= _PAGE:
                await self._queue.add(adds[:_PAGE])
                adds = adds[_PAGE:]
        if adds:
            await self._queue.add(adds)

    async def _entries(self, cluster: str, record: ResourceRecord) -> AsyncIterator[Entry]:
        token = ""
        while True:
            page = await self._reader.list(
                ListQuery(
                    clusters=(cluster,),
                    resource=record.key,
                    limit=_PAGE,
                    continue_token=token,
                    count=False,
                )
            )
            for entry in page.entries:
                yield entry
            token = page.continue_token
            if not token:
                break
        async for namespace, name in self._reader.deleted_keys(cluster, record.key):
            if entry := await self._reader.get_deleted(cluster, record.key, namespace, name):
                yield entry


def _event(entry: Entry, record: ResourceRecord) -> Event:
    """An object of the snapshot in the form that watches look at."""
    return Event(
        cluster=entry.cluster,
        incarnation=Incarnation(0, ""),
        group=record.group,
        version=record.version,
        resource=record.plural,
        kind=record.kind,
        namespace=entry.namespace,
        name=entry.name,
        uid=entry.uid,
        resource_version=entry.resource_version,
        verb=Verb.LISTED,
        epoch=Rank("", 0),
        observed_at="",
        object=entry.body or None,
        degraded=entry.degraded,
    )
