"""Batches reads of single objects that are requested at the same time.

A take returns many requests at once, and their functions all begin with a read: one command for
each would cost the process five times as much as one for all.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, cast

from redis.asyncio import Redis

from fleetbus.process.cancellation import cancellable

MOST: Final = 500
"""Objects per batch: an answer takes memory here, and time of the store (rule P16)."""


class Place(NamedTuple):
    """Where the snapshot keeps one object."""

    guards: str
    bodies: str
    """The hashes of its resource; `bodies` may be those of the deleted ones."""
    member: bytes
    """Its key in both."""
    shard: int


Row: TypeAlias = tuple[bytes | None, bytes | None]
"""Guard and body of one moment, as stored; None if absent."""


class _Again(Exception):
    """The task that read for the others was cancelled: one of them reads again."""


class PointReads:
    """Batches the reads of one turn of the event loop; the first task reads for all.

    Args:
        redis: where the snapshot is.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._wanted: dict[Place, list[asyncio.Future[Row]]] | None = None
        """Reads of other tasks, while the first task still collects them."""

    async def get(self, place: Place) -> Row:
        """Guard and body of one object.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        while True:
            reads = self._wanted
            if reads is None or len(reads) >= MOST:
                return await self._ask(place)
            answer: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
            reads.setdefault(place, []).append(answer)
            with suppress(_Again):
                return await answer

    async def _ask(self, place: Place) -> Row:
        reads: dict[Place, list[asyncio.Future[Row]]] = {place: []}
        try:
            await self._gather(reads)
            with cancellable():  # redis-py sends under asyncio.wait_for
                rows = await read_rows(self._redis, list(reads))
        except BaseException as e:
            for answer in _open(reads):
                # A copy for each: a traceback grows with every frame that lets it through.
                answer.set_exception(copy.copy(e) if isinstance(e, Exception) else _Again())
            raise
        for answers, row in zip(reads.values(), rows, strict=True):
            for answer in answers:
                if not answer.done():  # its task may have been cancelled
                    answer.set_result(row)
        return rows[0]

    async def _gather(self, reads: dict[Place, list[asyncio.Future[Row]]]) -> None:
        """Let other tasks add reads for one turn of the loop."""
        self._wanted = reads
        try:
            await asyncio.sleep(0)
        finally:
            if self._wanted is reads:  # else it was full, and another task collects
                self._wanted = None


def _open(reads: Mapping[Place, Sequence[asyncio.Future[Row]]]) -> list[asyncio.Future[Row]]:
    """The futures that nobody has answered."""
    return [answer for answers in reads.values() for answer in answers if not answer.done()]


async def read_rows(redis: Redis, places: Sequence[Place]) -> list[Row]:
    """Read guard and body of one moment for each place, in their order.

    Raises:
        redis.exceptions.RedisError: the store is away.
    """
    shards: dict[int, list[int]] = {}
    for at, place in enumerate(places):
        shards.setdefault(place.shard, []).append(at)
    if len(shards) == 1:
        return await _read_shard(redis, places)
    parts = [[places[at] for at in numbers] for numbers in shards.values()]
    answers = await asyncio.gather(*(_read_shard(redis, portion) for portion in parts))
    rows: list[Row] = [(None, None)] * len(places)
    for numbers, shard_rows in zip(shards.values(), answers, strict=True):
        for at, row in zip(numbers, shard_rows, strict=True):
            rows[at] = row
    return rows


async def _read_shard(redis: Redis, places: Sequence[Place]) -> list[Row]:
    groups: dict[tuple[str, str], list[int]] = {}
    for at, place in enumerate(places):
        groups.setdefault((place.guards, place.bodies), []).append(at)
    async with redis.pipeline(transaction=True) as pipe:
        for hashes, numbers in groups.items():
            members = cast("Any", [places[at].member for at in numbers])
            for name in hashes:
                pipe.hmget(name, members)
        answers = cast("list[list[bytes | None]]", await pipe.execute())
    rows: list[Row] = [(None, None)] * len(places)
    for numbers, guards, bodies in zip(groups.values(), answers[::2], answers[1::2], strict=True):
        for at, guard, body in zip(numbers, guards, bodies, strict=True):
            rows[at] = (guard, body)
    return rows
