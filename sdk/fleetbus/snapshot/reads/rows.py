"""Reads many rows of one resource, in parts of a bounded size, and keeps up with their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.guard import Guard, read_guard
from fleetbus.snapshot.reads.walk import Range, range_of, walk_members
from fleetbus.snapshot.scripts import register

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from redis.asyncio import Redis

    from fleetbus.snapshot.reads.query import ListQuery
    from fleetbus_proto.keys import SnapshotKeys

MOST_ROWS: Final = 500
"""Per read: the script blocks its server while it runs."""


class StoredRow(NamedTuple):
    """One row as it is stored."""

    key: bytes
    """`<namespace>/<name>`."""
    guard: Guard | None
    """None if there is no row."""
    body: bytes

    @property
    def is_live(self) -> bool:
        """Whether this is an object, and not a tombstone or nothing."""
        return self.guard is not None and self.guard.is_live


class RowReads:
    """Reads rows by their keys.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._fit = register(redis, "fit_rows", after="")

    def walk(self, cluster: str, resource: str, bounds: Range) -> AsyncIterator[list[bytes]]:
        """Yield the keys of the objects in a range, in order."""
        return walk_members(self._redis, self._keys.order(cluster, resource), bounds)

    async def read(
        self, cluster: str, resource: str, members: Sequence[bytes], *, most_bytes: int
    ) -> list[StoredRow]:
        """Read guards and bodies of one moment: of the first keys, at least one.

        Args:
            cluster: its name.
            resource: the resource key.
            members: the keys; those beyond `MOST_ROWS` are left out.
            most_bytes: no further body is read when those so far have reached it.
        """
        guards, bodies = self._keys.guards(cluster, resource), self._keys.bodies(cluster, resource)
        chunk: Sequence[Any] = members[:MOST_ROWS]
        if not chunk:
            return []
        count = cast("int", await self._fit(keys=[bodies], args=[most_bytes, *chunk]))
        chunk = chunk[:count]
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(guards, chunk)
            pipe.hmget(bodies, chunk)
            answers = cast("list[list[bytes | None]]", await pipe.execute())
        return [
            StoredRow(key, None if guard is None else read_guard(guard), body or b"")
            for key, guard, body in zip(chunk, *answers, strict=True)
        ]

    async def count_candidates(self, query: ListQuery, *, most: int) -> int:
        """Count the objects that an index finds for a query, in one round trip.

        Args:
            query: its name and the requirements that no index answers are ignored.
            most: a cluster with labels is not counted further than that.
        """
        terms = query.labels.terms if query.labels else ()
        low, high = range_of(query.namespace)
        async with self._redis.pipeline(transaction=False) as pipe:
            for cluster in query.clusters:
                if terms:
                    sets = [self._keys.labels(cluster, query.resource, term) for term in terms]
                    pipe.sintercard(len(sets), cast("Any", sets), limit=most)
                else:
                    order = self._keys.order(cluster, query.resource)
                    pipe.zlexcount(order, cast("Any", low), cast("Any", high))
            return sum(cast("list[int]", await pipe.execute())) if query.clusters else 0
