"""The feed of the snapshot: its changes in the order of versions, for those who watch (A5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.errors import FleetbusError
from fleetbus.snapshot.reads.changed import Change, ChangedObjects
from fleetbus.snapshot.reads.versions import Versions
from fleetbus.snapshot.scripts import register
from fleetbus_proto.keys import split_object_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

MOST: Final = 500
"""Changes per answer: the script blocks its server while it runs."""


class ExpiredPosition(FleetbusError):
    """The feed does not reach back to this position, or the store was lost since: list again."""


class Position(NamedTuple):
    """Position of a reader in the feed."""

    generation: str
    """Generation of the feed in each shard; positions are void when it changes (rule P13)."""
    version: int
    """Every change up to this version was read."""


class _Part(NamedTuple):
    """The answer of one shard."""

    generation: str
    issued: int
    first: int | None
    """The first version that is left, if older ones were cut off."""
    changes: list[Change]


def resume(version: int, end: Position) -> Position:
    """The position of somebody who knows a version of the snapshot, but not the feed's generation.

    Args:
        version: that they were given with an object or a list.
        end: the present position.

    Raises:
        ExpiredPosition: it was issued before the feed began anew, or never.
    """
    if version > end.version:
        raise ExpiredPosition(f"version {version} was never issued: the last one is {end.version}")
    starts = [generation.rpartition("@")[2] for generation in end.generation.split(",")]
    if not all(start.isdigit() for start in starts):
        raise ExpiredPosition("the feed does not tell where it began: list again")
    if version < (first := max(map(int, starts))):
        raise ExpiredPosition(f"the feed has begun anew since, at version {first}: list again")
    return Position(end.generation, version)


class Feed:
    """Merges the feeds of all shards.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._keys = keys
        self._versions = Versions(redis, keys)
        self._read = register(redis, "read_feed", after="server")
        self.objects = ChangedObjects(redis, keys)
        """The objects of changes: the feed has only their names."""

    async def end(self) -> Position:
        """The position behind every change so far.

        Raises:
            StoreEmpty: the store was emptied, or a shard.
            ExpiredPosition: a server was replaced just now; to be repeated.
        """
        version = await self._versions.read()
        parts = await self._read_all(version.number, str(version.number), 1)
        return Position(_join(parts), version.number)

    async def read(self, position: Position, *, most: int = MOST) -> tuple[list[Change], Position]:
        """Read the changes after a position, in the order of versions, and where to go on.

        No change is missed and none comes twice, however the shards' servers and clocks differ.
        Without changes the position may still move.

        Raises:
            ExpiredPosition: list again, and go on from the version of the list.
            StoreEmpty: the store was emptied, or a shard.
        """
        upto = "" if self._keys.shards == 1 else str((await self._versions.read()).number)
        parts = await self._read_all(position.version, upto, most)
        if _join(parts) != position.generation:
            raise ExpiredPosition("the feed has begun anew since: list again")
        if any(
            shard_feed.first is not None and position.version < shard_feed.first
            for shard_feed in parts
        ):
            raise ExpiredPosition("the feed does not reach back to this version: list again")
        end = int(upto) if upto else parts[0].issued
        for shard_feed in parts:
            if len(shard_feed.changes) == most:  # there may be more, before those of other shards
                end = min(end, shard_feed.changes[-1].version)
        changes = sorted(
            change for shard_feed in parts for change in shard_feed.changes if change.version <= end
        )
        if len(changes) > most:
            changes = changes[:most]
            end = changes[-1].version
        return changes, Position(position.generation, max(end, position.version))

    async def _read_all(self, after: int, upto: str, most: int) -> Sequence[_Part]:
        shards = range(self._keys.shards)
        return await asyncio.gather(*(self._read_one(shard, after, upto, most) for shard in shards))

    async def _read_one(self, shard: int, after: int, upto: str, most: int) -> _Part:
        keys = self._keys
        names = [keys.feed_generation(shard), keys.feed(shard)]
        answer = await self._read(
            keys=[*names, keys.counter(shard), keys.store(shard)], args=[after, upto, most]
        )
        generation, issued, first, entries = cast("tuple[bytes, bytes, bytes, list[Any]]", answer)
        changes = [_read_entry(*entry) for entry in entries]
        return _Part(generation.decode(), int(issued), int(first) if first else None, changes)


def _join(parts: Sequence[_Part]) -> str:
    if not all(shard_feed.generation for shard_feed in parts):
        raise ExpiredPosition("the store is another server, and the feed begins anew: list again")
    return ",".join(shard_feed.generation for shard_feed in parts)


def _read_entry(entry_id: bytes, fields: Sequence[bytes]) -> Change:
    values = {name: value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
    namespace, name = split_object_key(values[b"key"])
    version = int(entry_id.partition(b"-")[0])
    return Change(
        version, values[b"type"], values[b"cluster"], values[b"resource"], namespace, name
    )
