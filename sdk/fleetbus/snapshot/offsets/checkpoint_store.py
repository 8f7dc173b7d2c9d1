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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from redis.exceptions import RedisError

from fleetbus.bus.durables import PROJECTOR
from fleetbus.snapshot.scripts import register
from fleetbus_proto import keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

_CLAIM: Final = timedelta(seconds=15)


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
        generation: of its content; None when it is empty (rule P13).
        mark: the checkpoint; None when there is none.
        run: the identity of the server that the checkpoint vouches for; empty if an older release
            wrote it.
    """

    identity: str
    generation: str | None
    offset: Offset | None
    run: str


class CheckpointStore:
    """The checkpoints in the store.

    Args:
        redis: a client as `connect` makes it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._look = register(redis, "read_checkpoint", after="redis_identity")
        self._write = register(redis, "write_checkpoint", after="redis_identity")

    async def read(self, durable: str) -> StoreState:
        """Read the identity of the server and a checkpoint.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        names = [
            *(keys.generation(), keys.feed_generation(), keys.feed(), keys.counter()),
            *(keys.store(), keys.offset_checkpoint(durable)),
        ]
        answer = await self._look(keys=names, args=[secrets.token_hex(8)])
        identity, generation, stream, low, floor, run = (
            None if value is None else value.decode()
            for value in cast("list[bytes | None]", answer)[:6]
        )
        mark = Offset(stream, int(low), int(floor or 0)) if stream and low else None
        return StoreState(identity or "", generation, mark, run or "")

    async def write(
        self, durable: str, seen: StoreState, mark: Offset, *, is_new: bool = False, breaks: int = 0
    ) -> bool:
        """Write a checkpoint if the store is unchanged; returns whether it was.

        Args:
            durable: its name.
            seen: the state from which the checkpoint was computed.
            mark: the new offset.
            is_new: it proves nothing of what came before: a full enqueue follows (rule P12).
            breaks: how many gaps were found.
        """
        held = seen.offset
        arguments: list[Any] = [
            *(seen.identity, seen.generation or ""),
            *(("", "") if held is None else (held.stream, held.low)),
            *(mark.stream, mark.low, mark.floor),
            *(secrets.token_hex(4) if is_new else "", breaks),
        ]
        names = [keys.generation(), keys.offset_checkpoint(durable)]
        return bool(await self._write(keys=names, args=arguments))


def ask_whether_settled(pipe: Pipeline) -> None:
    """Add to a pipeline what `read_whether_settled` needs: three commands."""
    pipe.hget(keys.offset_checkpoint(PROJECTOR), "run")
    pipe.info("server")
    pipe.info("replication")


def read_whether_settled(
    run: bytes | None, server: Mapping[str, Any], history: Mapping[str, Any]
) -> bool:
    """Whether the projector vouches for the content of the server that answers (rule P11)."""
    return run is None or run.decode() == f"{server['run_id']} {history['master_replid']}"


@asynccontextmanager
async def claimed(redis: Redis, consumer: str) -> AsyncGenerator[bool]:
    """Claim the replay of a consumer for the block; yields False if another process has it.

    The claim of a dead process expires. It only saves work: two replays at a time are harmless.
    """
    key, nonce = keys.replay_claim(consumer), secrets.token_hex(8)
    if not await redis.set(key, nonce, nx=True, px=_CLAIM):
        yield False
        return
    renewing = asyncio.create_task(_renew(redis, key), name=f"claim {consumer}")
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(RedisError):
            await register(redis, "release_claim", after="redis_identity")(keys=[key], args=[nonce])


async def _renew(redis: Redis, key: str) -> None:
    while True:
        await asyncio.sleep(_CLAIM.total_seconds() / 3)
        with contextlib.suppress(RedisError):
            await redis.pexpire(key, _CLAIM)
