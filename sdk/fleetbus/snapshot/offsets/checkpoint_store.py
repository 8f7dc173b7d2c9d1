"""Reads and writes offset checkpoints, and identifies the store's server (rules P11, P13).

Replication and the append-only file keep a prefix of the writes. A checkpoint is written after the
effects that it vouches for, so wherever it is found again, all of them are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from redis.exceptions import RedisError

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.snapshot.scripts import register, script_text
from fleetbus.snapshot.shards import check_generation
from fleetbus_proto.keys import SnapshotKeys, queue_checkpoint, queue_replay_claim

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

_CLAIM: Final = timedelta(seconds=15)
_IS_SETTLED: Final = script_text("is_settled", after="server")


class Offset(NamedTuple):
    """Up to where a consumer has handled its messages of a stream."""

    stream: str
    """When the stream was created: another stream has sequences of its own."""
    low: int
    """Its low-water sequence (rule B17)."""
    floor: int = 0
    """Its ack floor: below the low-water sequence if nothing was received for long."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of the store at one moment.

    Attributes:
        identity: of the server that answered.
        generation: of its content; None when a shard of the snapshot is empty (rule P13).
        mark: the checkpoint; None when there is none.
        run: the identity of the server that the checkpoint vouches for; empty if an older release
            wrote it.
    """

    identity: str
    generation: str | None
    offset: Offset | None
    run: str


@dataclass(frozen=True, slots=True)
class Beside:
    """The data that a consumer's checkpoint vouches for; it is kept on the same server (P11, P16).

    Attributes:
        name: for the log.
        checkpoint: makes the key of the checkpoint of a durable.
        claim: key of the claim to a replay.
        shard: of the snapshot; None if it is the queue of a controller.
    """

    name: str
    checkpoint: Callable[[str], str]
    claim: str
    shard: int | None = None

    @classmethod
    def shard_of_snapshot(cls, keys: SnapshotKeys, shard: int, consumer: str) -> Beside:
        """A shard of the snapshot, whose effects the projector repeats."""
        return cls(
            f"shard {shard}",
            partial(keys.offset_checkpoint, shard),
            keys.replay_claim(shard, consumer),
            shard,
        )

    @classmethod
    def queue(cls, controller: str) -> Beside:
        """A controller's queue and record, whose requests it enqueues again."""
        return cls("queue", partial(queue_checkpoint, controller), queue_replay_claim(controller))


class CheckpointStore:
    """The checkpoints of one consumer beside some data.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
        beside: the data.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys, beside: Beside) -> None:
        self._redis = redis
        self._keys = keys
        self._beside = beside
        self._look = register(redis, "read_checkpoint", after="server")
        self._write = register(redis, "write_checkpoint", after="server")

    async def read(self, durable: str) -> StoreState:
        """Read the identity of the server and a checkpoint.

        Raises:
            WrongShards: the snapshot was set up with another number of shards.
            redis.exceptions.RedisError: the store is away.
        """
        fresh = secrets.token_hex(8)
        args = [fresh, self._beside.shard or 0, self._keys.shards]
        answer = await self._look(keys=self._names(durable), args=args)
        identity, generation, stream, low, floor, run, born = (
            None if value is None else value.decode()
            for value in cast("list[bytes | None]", answer)[:7]
        )
        if self._beside.shard is None:
            generation = born or ""
        elif generation is not None:
            check_generation(generation.encode(), self._keys)
        mark = Offset(stream, int(low), int(floor or 0)) if stream and low else None
        return StoreState(identity or "", generation, mark, run or "")

    def _names(self, durable: str) -> list[str]:
        checkpoint, shard, keys = self._beside.checkpoint(durable), self._beside.shard, self._keys
        if shard is None:
            return [checkpoint]
        return [
            *(checkpoint, keys.generation(shard), keys.feed_generation(shard)),
            *(keys.feed(shard), keys.counter(shard), keys.store(shard)),
        ]

    async def write(
        self,
        durable: str,
        state: StoreState,
        mark: Offset,
        *,
        is_new: bool = False,
        breaks: int = 0,
    ) -> bool:
        """Write a checkpoint if the store is unchanged; returns whether it was.

        Args:
            durable: its name.
            state: the state from which the checkpoint was computed.
            mark: the new offset.
            is_new: it proves nothing of what came before: a full enqueue follows (rule P12).
            breaks: how many gaps were found.
        """
        offset = state.offset
        arguments: list[Any] = [
            *(state.identity, state.generation or ""),
            *(("", "") if offset is None else (offset.stream, offset.low)),
            *(mark.stream, mark.low, mark.floor),
            *(secrets.token_hex(4) if is_new else "", breaks),
        ]
        return bool(await self._write(keys=self._names(durable)[:2], args=arguments))

    async def count_break(self, durable: str) -> None:
        """Count a gap that has nothing to do with the offset.

        Raises:
            redis.exceptions.RedisError: nobody knows whether it was counted; to be repeated.
        """
        await cast("Any", self._redis.hincrby(self._beside.checkpoint(durable), "breaks", 1))


def ask_whether_settled(pipe: Pipeline, keys: SnapshotKeys, shard: int) -> None:
    """Ask in a pipeline whether the projector vouches for a shard (rule P11); the answer is 0 or 1.

    The script is sent as a whole: a pipeline cannot load it, and repeat itself.
    """
    pipe.eval(_IS_SETTLED, 1, keys.offset_checkpoint(shard, PROJECTOR))


@asynccontextmanager
async def claimed(redis: Redis, key: str) -> AsyncGenerator[bool]:
    """Claim a replay for the block, by its key; yields False if another process has it.

    The claim of a dead process expires. It only saves work: two replays at a time are harmless.
    """
    nonce = secrets.token_hex(8)
    if not await redis.set(key, nonce, nx=True, px=_CLAIM):
        yield False
        return
    renewing = asyncio.create_task(_renew(redis, key), name=f"claim {key}")
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(RedisError):
            await register(redis, "release_claim", after="server")(keys=[key], args=[nonce])


async def _renew(redis: Redis, key: str) -> None:
    while True:
        await asyncio.sleep(_CLAIM.total_seconds() / 3)
        with contextlib.suppress(RedisError):
            await redis.pexpire(key, _CLAIM)
