"""The number of shards that the snapshot was set up with, and its format; who may use it.

Both are part of each shard's generation, which every write reads anyway: a process with another
number would look for a cluster in the wrong shard, and one that does not know the format would
misread what is there. Neither may write or answer anything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.process.stored_format import why_newer
from fleetbus.process.waiting import wait_until_usable
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto.keys import SnapshotKeys

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.exceptions import ResponseError

    from fleetbus.process.health import Health

_EMPTY: Final = "NOGENERATION"
_WRONG: Final = "WRONGSHARDS "
_EMPTY_IT: Final = (
    "to go on with this one, stop every process, delete the keys fleetbus:{fleet:*, and start this"
    " release: the snapshot is filled again from the clusters"
)


class WrongShards(StoreError):
    """This process is set to another number of shards than the snapshot has. Nothing was written.

    Nothing is acknowledged either, so nothing is lost until somebody corrects the setting.
    """


class NewerSnapshot(StoreError):
    """A newer release wrote the snapshot in a format of its own. Nothing was written (P19)."""


def make_generation(fresh: str, keys: SnapshotKeys) -> str:
    """A generation with the number of shards."""
    return f"{fresh}/{keys.shards}"


def shards_in(generation: str) -> int:
    """The number of shards in a generation; 1 if it names none."""
    return _read_end(generation)[0]


def check_generation(raw: bytes | None, keys: SnapshotKeys) -> str:
    """Decode the generation of a shard.

    Raises:
        StoreEmpty: there is none (rule P13).
        WrongShards: it was set up with another number of shards.
        NewerSnapshot: a newer release has written it.
    """
    if raw is None:
        raise _store_is_empty()
    generation = raw.decode()
    if problem := _why_unusable(generation, keys):
        raise problem
    return generation


def refusal(error: ResponseError, keys: SnapshotKeys) -> StoreError | None:
    """Translate a script's refusal of a shard; None for any other error."""
    text = str(error)
    if _EMPTY in text:
        return _store_is_empty()
    if _WRONG in text:
        # In the rare case that the shard was set up again since, the next attempt succeeds.
        return _why_unusable(text, keys) or _wrong(shards_in(text), keys)
    return None


def _read_end(generation: str) -> tuple[int, str]:
    """The number of shards, and the mark of a newer format: `<id>/<shards>[ <mark>]`."""
    number, _, mark = generation.rpartition("/")[2].partition(" ")
    return (int(number) if number.isdigit() else 1), mark


def _why_unusable(generation: str, keys: SnapshotKeys) -> StoreError | None:
    shards, mark = _read_end(generation)
    if newer := why_newer("the snapshot", mark, back=_EMPTY_IT):
        return NewerSnapshot(newer)
    return _wrong(shards, keys) if shards != keys.shards else None


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
        NewerSnapshot: a newer release has written it.
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
        NewerSnapshot: a newer release has written it.
        redis.exceptions.RedisError: the store is away.
    """
    raw = cast("bytes | None", await redis.get(SnapshotKeys().generation(0)))
    if not raw:
        return SnapshotKeys()
    keys = SnapshotKeys(shards_in(raw.decode()))
    check_generation(raw, keys)
    return keys
