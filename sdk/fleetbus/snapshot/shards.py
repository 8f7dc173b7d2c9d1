"""The number of shards that the snapshot was set up with, and its comparison with the setting.

It is part of each shard's generation, which every write reads anyway: a process with another number
would look for a cluster in the wrong shard, and must not write or answer anything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.process.waiting import wait_until_usable
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto.keys import SnapshotKeys

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.exceptions import ResponseError

    from fleetbus.process.health import Health

_EMPTY: Final = "NOGENERATION"
_WRONG: Final = "WRONGSHARDS "


class WrongShards(StoreError):
    """This process is set to another number of shards than the snapshot has. Nothing was written.

    Nothing is acknowledged either, so nothing is lost until somebody corrects the setting.
    """


def make_generation(fresh: str, keys: SnapshotKeys) -> str:
    """A generation with the number of shards."""
    return f"{fresh}/{keys.shards}"


def shards_in(generation: str) -> int:
    """The number of shards in a generation; 1 if it names none."""
    number = generation.rpartition("/")[2]
    return int(number) if number.isdigit() else 1


def check_generation(raw: bytes | None, keys: SnapshotKeys) -> str:
    """Decode the generation of a shard.

    Raises:
        StoreEmpty: there is none (rule P13).
        WrongShards: it was set up with another number of shards.
    """
    if raw is None:
        raise _store_is_empty()
    generation = raw.decode()
    if shards_in(generation) != keys.shards:
        raise _wrong(shards_in(generation), keys)
    return generation


def refusal(error: ResponseError, keys: SnapshotKeys) -> StoreError | None:
    """Translate a script's refusal of a shard; None for any other error."""
    text = str(error)
    if _EMPTY in text:
        return _store_is_empty()
    if _WRONG in text:
        return _wrong(shards_in(text), keys)
    return None


def _store_is_empty() -> StoreEmpty:
    return StoreEmpty("the snapshot's store is empty: no generation (P13)")


def _wrong(actual: int, keys: SnapshotKeys) -> WrongShards:
    return WrongShards(
        f"the snapshot was set up with {actual} shards, and this process is set to {keys.shards}:"
        f" set FLEETBUS_SHARDS={actual} for it. To change the number, stop every process,"
        " delete the keys fleetbus:{fleet:*, and start with the new number: the snapshot is filled"
        " again from the clusters"
    )


async def check_shards(redis: Redis, keys: SnapshotKeys) -> None:
    """Compare the setting with the shards that are set up, as far as they answer.

    Raises:
        WrongShards: they differ.
    """
    names = map(keys.generation, range(keys.shards))
    generations = await asyncio.gather(*map(cast("Any", redis.get), names), return_exceptions=True)
    for raw in generations:
        if isinstance(raw, bytes):
            check_generation(raw, keys)
        elif isinstance(raw, BaseException) and not isinstance(raw, RedisError):
            raise raw


async def wait_for_shards(redis: Redis, keys: SnapshotKeys, health: Health) -> None:
    """Wait until the setting and the shards agree; the process is not ready meanwhile."""

    async def check() -> None:
        await check_shards(redis, keys)

    await wait_until_usable("shards", check, health=health, failures=StoreError)


async def find_shards(redis: Redis) -> SnapshotKeys:
    """Read the number of shards, for commands that have no setting; 1 before they are set up.

    Raises:
        redis.exceptions.RedisError: the store is away.
    """
    raw = cast("bytes | None", await redis.get(SnapshotKeys().generation(0)))
    return SnapshotKeys(shards_in(raw.decode())) if raw else SnapshotKeys()
