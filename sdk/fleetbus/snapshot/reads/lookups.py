"""Finds objects of any resource by their name, or by their owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.guard import Guard, read_guard
from fleetbus.snapshot.scripts import register
from fleetbus_proto.keys import split_object_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_RESOURCES: Final = 50
"""Per script, which blocks its server while it runs."""
_SCAN: Final = 1_000


class FoundObject(NamedTuple):
    """Where an object is, and what its guard tells of it."""

    cluster: str
    resource: str
    namespace: str
    name: str
    uid: str
    resource_version: str


class Lookups:
    """Finds objects without reading their bodies.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._find = register(redis, "find_names", after="server")

    async def find_name(
        self, places: Sequence[tuple[str, str]], name: str, namespace: str | None
    ) -> list[FoundObject]:
        """Find the objects of a name.

        Args:
            places: cluster and resource key of each resource to search.
            name: of the objects.
            namespace: the only one to search; empty for objects without one, None for any.
        """
        shards: dict[int, list[tuple[str, str]]] = {}
        for place in places:
            shards.setdefault(self._keys.shard_of(place[0]), []).append(place)
        parts = [
            shard_places[at : at + _RESOURCES]
            for shard_places in shards.values()
            for at in range(0, len(shard_places), _RESOURCES)
        ]
        answers = await asyncio.gather(
            *(self._find_in(portion, name, namespace) for portion in parts)
        )
        return sorted(obj for answer in answers for obj in answer)

    async def _find_in(
        self, places: Sequence[tuple[str, str]], name: str, namespace: str | None
    ) -> list[FoundObject]:
        objects: list[FoundObject] = []
        remaining: Sequence[tuple[str, str]] = places
        while remaining:
            searched = remaining
            names = [
                key
                for place in searched
                for key in (self._keys.order(*place), self._keys.guards(*place))
            ]
            args = [name, int(namespace is not None), namespace or ""]
            done, rows = cast("tuple[int, list[Any]]", await self._find(keys=names, args=args))
            for index, key, guard in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
                if guard is not None:
                    cluster, resource = searched[int(index) - 1]
                    objects.append(_found(cluster, resource, key, read_guard(guard)))
            remaining = remaining[done:]
        return objects

    async def owned(self, uid: str, *, most: int) -> list[tuple[str, str, bytes]]:
        """Find cluster, resource key and key of the objects that a UID owns, by the index.

        Args:
            uid: of the owner.
            most: about how many are read of each shard.
        """
        shards = range(self._keys.shards)
        parts = await asyncio.gather(*(self._owned_in(shard, uid, most) for shard in shards))
        return sorted(set[tuple[str, str, bytes]]().union(*parts))

    async def _owned_in(self, shard: int, uid: str, most: int) -> set[tuple[str, str, bytes]]:
        owned: set[tuple[str, str, bytes]] = set()
        cursor = -1
        while cursor and len(owned) < most:
            cursor, members = cast(
                "tuple[int, list[bytes]]",
                await cast("Any", self._redis).sscan(
                    self._keys.owners(shard, uid), max(cursor, 0), count=_SCAN
                ),
            )
            for member in members:
                cluster, resource, key = member.split(b"|", 2)
                owned.add((cluster.decode(), resource.decode(), key))
        return owned

    async def describe(self, members: Sequence[tuple[str, str, bytes]]) -> list[FoundObject]:
        """Read the guards of objects; those that are gone are left out."""
        places: dict[tuple[str, str], list[bytes]] = {}
        for cluster, resource, key in members:
            places.setdefault((cluster, resource), []).append(key)
        answers = await asyncio.gather(
            *(
                cast("Any", self._redis.hmget(self._keys.guards(*place), cast("Any", keys)))
                for place, keys in places.items()
            )
        )
        objects: list[FoundObject] = []
        for (place, keys), raw in zip(places.items(), answers, strict=True):
            cluster, resource = place
            for key, guard in zip(keys, cast("list[bytes | None]", raw), strict=True):
                if guard is not None and (parsed_guard := read_guard(guard)).is_live:
                    objects.append(_found(cluster, resource, key, parsed_guard))
        return sorted(objects)


def _found(cluster: str, resource: str, key: bytes, guard: Guard) -> FoundObject:
    namespace, name = split_object_key(key.decode())
    return FoundObject(cluster, resource, namespace, name, guard.uid, guard.resource_version)
