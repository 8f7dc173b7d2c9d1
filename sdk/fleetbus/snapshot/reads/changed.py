"""Reads the objects that changes of the feed are about, as they are by then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fleetbus.snapshot.guard import read_guard
from fleetbus.snapshot.reads.entries import Entry
from fleetbus.snapshot.reads.point_reads import Place, read_rows
from fleetbus_proto.keys import object_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

MOST: Final = 100
"""Objects per round trip: bodies of 1 MiB each are still a bearable answer."""


class Change(NamedTuple):
    """A visible change of the snapshot."""

    version: int
    """Version of the snapshot; no two changes have the same."""
    type: str
    """`added`, `modified`, `deleted`, `unwatched` or, of a whole cluster, `dropped`."""
    cluster: str
    resource: str
    """The resource key; empty for a whole cluster."""
    namespace: str
    name: str


class ObjectState(NamedTuple):
    """An object, or what is left of a deleted one."""

    entry: Entry
    """As served; of a deleted one the last state, as long as that is kept (rule P3)."""
    is_live: bool
    labels: Mapping[str, str]
    """Empty if they are unknown, or the object is deleted."""


class ChangedObjects:
    """Reads the objects of changes.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def read(self, changes: Sequence[Change]) -> list[ObjectState | None]:
        """Read the object of each change, in their order; None where not even a tombstone is left.

        A later change of the same object may show already. The last state of a deleted object is
        read only for a change that says so.

        Args:
            changes: at most `MOST` of single objects.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        rows = await read_rows(self._redis, [self._place(change) for change in changes])
        return [
            None if guard is None else _state(change, guard, body or b"")
            for change, (guard, body) in zip(changes, rows, strict=True)
        ]

    def _place(self, change: Change) -> Place:
        keys, where = self._keys, (change.cluster, change.resource)
        bodies = keys.tombstones if change.type == "deleted" else keys.bodies
        member = object_key(change.namespace, change.name).encode()
        return Place(keys.guards(*where), bodies(*where), member, keys.shard_of(change.cluster))


def _state(change: Change, raw: bytes, body: bytes) -> ObjectState:
    guard = read_guard(raw)
    entry = Entry(
        change.cluster,
        change.namespace,
        change.name,
        guard.uid,
        guard.resource_version,
        body,
        int(guard.counter),
        guard.degraded,
        int(guard.incarnation),
    )
    return ObjectState(entry, guard.is_live, guard.label_map())
