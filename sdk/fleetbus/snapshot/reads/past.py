"""Reads of the past: the last lists, and which objects changed since a time.

The counter of a shard has no time. So the projector notes every half minute which version was the
last one (`keys.clock`), and a time becomes a version by the last note before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.scripts import register
from fleetbus_proto.keys import split_object_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_MS: Final = 1_000
_SCAN: Final = 500
"""Guards per script, which blocks its server while it runs: about a millisecond."""


class LastList(NamedTuple):
    """The last complete list of a resource."""

    resource_version: str
    epoch_id: int
    """About when it began, in ms since 1970; 0 if there was none."""


class ChangedObject(NamedTuple):
    """An object that changed."""

    namespace: str
    name: str
    is_owned: bool
    """Whether it has an owner, by ownerReference or by our owner label."""
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

    async def last_lists(self, places: Mapping[str, str]) -> dict[str, LastList]:
        """Read the last complete list of a resource in each cluster, if all of it is watched.

        Args:
            places: the resource key by cluster.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for cluster, resource in places.items():
                pipe.hget(self._keys.epochs(cluster, resource, ""), "completed")
            held = cast("list[bytes | None]", await pipe.execute()) if places else []
        found: dict[str, LastList] = {}
        for cluster, rank in zip(places, held, strict=True):
            version, _, epoch_id = (rank or b"").decode().partition(" ")
            found[cluster] = LastList(version, int(epoch_id or 0))
        return found

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
            next_cursor, found = cast("tuple[bytes, list[Any]]", answer)
            page = [
                ChangedObject(*split_object_key(key.decode()), owners != b"", size)
                for key, owners, size in zip(found[::3], found[1::3], found[2::3], strict=True)
            ]
            if page:
                yield page
            cursor = next_cursor.decode()
            if cursor == "0":
                return
