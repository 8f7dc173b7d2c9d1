"""Reads of the past: the last complete epochs, and which objects changed since a time.

The counter of a shard has no time. So the projector notes every half minute which version was the
last one (`keys.clock`), and a time becomes a version by the last note before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.scripts import register
from fleetbus_proto.events import Rank
from fleetbus_proto.keys import split_object_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from datetime import datetime

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_MS: Final = 1_000
_SCAN: Final = 500
"""Guards per script, which blocks its server while it runs: about a millisecond."""


class CompletedRank(NamedTuple):
    """The last complete epoch of one scope of a resource.

    Attributes:
        incarnation: the latest one that was applied (rule P2).
        rank: of the epoch; None if none of this incarnation is complete.
    """

    incarnation: int
    rank: Rank | None


class ChangedObject(NamedTuple):
    """An object that changed."""

    namespace: str
    name: str
    is_owned: bool
    """Whether an ownerReference names an owner; see `is_marked` for an owner mark."""
    is_marked: bool
    """Whether our owner label is its only sign of an owner."""
    size: int
    """Bytes of its present state."""


class PastReads:
    """Reads of the past.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._changed = register(redis, "find_changed")

    async def completed_ranks(
        self, scopes: Collection[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], CompletedRank]:
        """Read the last complete epochs of scopes, given as (cluster, resource, scope).

        Those that nothing was applied of are omitted.

        Raises:
            redis.exceptions.RedisError: the snapshot cannot be read.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.hmget(self._keys.epochs(*scope), "incarnation", "completed")
            rows = cast("list[list[bytes | None]]", await pipe.execute()) if scopes else []
        ranks: dict[tuple[str, str, str], CompletedRank] = {}
        for scope, (incarnation, completed) in zip(scopes, rows, strict=True):
            if incarnation:
                version, _, epoch_id = (completed or b"").decode().partition(" ")
                rank = Rank(version, int(epoch_id)) if version else None
                ranks[scope] = CompletedRank(int(incarnation), rank)
        return ranks

    async def version_at(self, shard: int, time: datetime) -> int:
        """The version that a shard had issued last at a time, or earlier; 0 if nobody noted one."""
        noted: Any = await self._redis.zrange(
            self._keys.clock(shard),
            cast("Any", round(time.timestamp() * _MS)),
            cast("Any", "-inf"),
            byscore=True,
            desc=True,
            offset=0,
            num=1,
        )
        return int(noted[0]) if noted else 0

    async def changed_since(
        self, cluster: str, resource: str, time: datetime
    ) -> AsyncIterator[list[ChangedObject]]:
        """Yield the objects of a resource that may have changed since a time.

        All that changed and exist are among them; others may be, too.
        """
        version = await self.version_at(self._keys.shard_of(cluster), time)
        cursor = "0"
        while True:
            answer = await self._changed(
                keys=[self._keys.guards(cluster, resource), self._keys.bodies(cluster, resource)],
                args=[cursor, _SCAN, version],
            )
            next_cursor, rows = cast("tuple[bytes, list[Any]]", answer)
            page = [
                ChangedObject(
                    *split_object_key(key.decode()), owner == b"owner", owner == b"mark", size
                )
                for key, owner, size in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
            ]
            if page:
                yield page
            cursor = next_cursor.decode()
            if cursor == "0":
                return
