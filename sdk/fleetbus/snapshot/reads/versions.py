"""One version for the whole snapshot, whose shards count for themselves (rule A5).

A shard's counter issues its versions. With several shards a version of the snapshot is one that
every shard has closed: what is written from then on gets a higher one. So nothing up to it is
missing, and the changes of all shards, ordered by their versions, have one order for every reader.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.scripts import register
from fleetbus.snapshot.shards import check_generation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_SPREAD: Final = 50_000
"""By how many microseconds the clocks of servers may differ before all versions are raised to the
highest one: readers get the changes of a server that is ahead so much later."""


class Version(NamedTuple):
    """A version of the snapshot."""

    generation: str
    """Generation of its content, in all shards (rule P13)."""
    number: int


class _Closed(NamedTuple):
    """The version up to which a shard is closed."""

    generation: str
    number: int
    is_ahead: bool
    """Whether the version is ahead of the clock of its server, which has gone back, or was set to
    another shard's version."""


class Versions:
    """Reads the current version of the snapshot.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._close = register(redis, "close_versions", after="server", when_full=True)

    async def read(self) -> Version:
        """Read the version up to which every change is applied, and no other will be.

        Raises:
            StoreEmpty: a shard has no generation.
            WrongShards: as `check_shards`.
        """
        keys = self._keys
        if keys.shards == 1:  # its counter is the version
            raw: Any = await self._redis.mget(keys.generation(0), keys.counter(0))
            return Version(check_generation(raw[0], keys), int(raw[1] or 0))
        versions = await self._close_all(range(keys.shards), 0)
        highest = max(versions.values(), key=attrgetter("number"))
        # The clocks of the others will not pass a version that is ahead of its own clock soon.
        spread = 0 if highest.is_ahead else _SPREAD
        if behind := [
            at for at, version in versions.items() if version.number < highest.number - spread
        ]:
            versions |= await self._close_all(behind, highest.number)
        generations = ",".join(versions[shard].generation for shard in range(keys.shards))
        return Version(generations, min(version.number for version in versions.values()))

    async def _close_all(self, shards: Iterable[int], least: int) -> dict[int, _Closed]:
        numbers = list(shards)
        answers = await asyncio.gather(*(self._close_one(shard, least) for shard in numbers))
        # First those that were set up with another number: some that we expect were never set up.
        for raw, _, _ in sorted(answers, key=lambda answer: answer[0] is None):
            check_generation(raw, self._keys)
        return {
            shard: _Closed((raw or b"").decode(), int(number), is_ahead == 1)
            for shard, (raw, number, is_ahead) in zip(numbers, answers, strict=True)
        }

    async def _close_one(self, shard: int, least: int) -> tuple[bytes | None, bytes, int]:
        names = [self._keys.generation(shard), self._keys.counter(shard)]
        answer = await self._close(keys=names, args=[shard, self._keys.shards, least])
        return cast("tuple[bytes | None, bytes, int]", answer)
