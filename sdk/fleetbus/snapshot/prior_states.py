"""States that changes have replaced, on their way to the stream of the history (rule A9).

apply.lua keeps the state that a change replaces if the object had not changed for long: its counter
is at most the settled version, which the projector moves on. The projector publishes what is kept
and drops it then, so that a crash between the two only repeats a publication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fleetbus.snapshot.guard import SEP
from fleetbus.snapshot.reads.past import PastReads
from fleetbus.snapshot.scripts import register
from fleetbus_proto.keys import split_object_key
from fleetbus_proto.prior import PriorState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_MS: Final = 1_000
_FIELDS: Final = 8


class KeptState(NamedTuple):
    """A state that waits to be published."""

    raw: bytes
    prior: PriorState


class PriorStates:
    """The states that changes have replaced.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._past = PastReads(redis, keys)
        self._drop = register(redis, "drop_prior_states", after="")

    async def note_clock(self, shard: int, now: datetime, *, kept: timedelta) -> None:
        """Note which version a shard has issued last by now; notes older than `kept` go.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        clock = self._keys.clock(shard)
        version: Any = await self._redis.get(self._keys.counter(shard))
        if version is None:
            return  # the shard is empty
        at = round(now.timestamp() * _MS)
        async with self._redis.pipeline(transaction=False) as pipe:
            # Of a version that is noted already the earlier time holds.
            pipe.zadd(clock, {version.decode(): at}, nx=True)
            pipe.zremrangebyscore(clock, "-inf", at - round(kept.total_seconds() * _MS))
            await pipe.execute()

    async def settle(self, shard: int, time: datetime) -> None:
        """Keep the states of objects that have not changed since a time, when they do.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        version = await self._past.version_at(shard, time)
        if version:
            await self._redis.set(self._keys.settled_version(shard), str(version))

    async def read(self, shard: int, *, most: int) -> list[KeptState]:
        """Read the first states that wait.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        reading: Any = self._redis.lrange(self._keys.prior_states(shard), 0, most - 1)
        return [KeptState(raw, _read(raw)) for raw in cast("list[bytes]", await reading)]

    async def drop(self, shard: int, published: Sequence[KeptState]) -> bool:
        """Drop what was read first and is published now; false if another process has done so.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        if not published:
            return True
        arguments = [published[0].raw, len(published)]
        return bool(await self._drop(keys=[self._keys.prior_states(shard)], args=arguments))


def _read(raw: bytes) -> PriorState:
    fields = raw.split(SEP.encode(), _FIELDS - 1)
    cluster, resource, incarnation, uid, version, replaced_by, length = (
        field.decode() for field in fields[:-1]
    )
    key, body = fields[-1][: int(length)], fields[-1][int(length) :]
    group, _, plural = resource.rpartition("/")
    namespace, name = split_object_key(key.decode())
    return PriorState(
        cluster=cluster,
        incarnation=int(incarnation),
        group=group,
        resource=plural,
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=version,
        replaced_by=replaced_by,
        object=body,
    )
