"""Reads of single objects that are asked for at one time go to the store together.

A take hands out many requests at once, whose functions all begin with a read: one question for each
would cost the process five times as much as one for all of them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

from redis.asyncio import Redis

MOST: Final = 500
"""Objects per question: what comes back is held in memory, and holds up the store (rule P16)."""


class Place(NamedTuple):
    """Where the snapshot keeps one object."""

    guards: str
    bodies: str
    """The hashes of its resource; `bodies` may be those of the deleted ones."""
    member: bytes
    """Its key in both."""


Row: TypeAlias = tuple[bytes | None, bytes | None]
"""Guard and body of one moment, as they are stored; None for what is not there."""


class PointReads:
    """Gathers what is asked for in one turn of the event loop.

    Args:
        redis: where the snapshot is.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._wanted: dict[Place, list[asyncio.Future[Row]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def get(self, place: Place) -> Row:
        """Guard and body of one object.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Row] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._ask)
        self._wanted.setdefault(place, []).append(answer)
        return await answer

    def _ask(self) -> None:
        rest = iter(self._wanted.items())
        self._wanted = {}
        while batch := dict(islice(rest, MOST)):
            task = asyncio.create_task(self._answer(batch), name="read objects together")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _answer(self, wanted: Mapping[Place, Sequence[asyncio.Future[Row]]]) -> None:
        try:
            rows = await read_rows(self._redis, list(wanted))
        except Exception as e:  # noqa: BLE001 -- whoever asked has to know, and decides
            for answers in wanted.values():
                for answer in _open(answers):
                    # One of its own: a traceback grows with everybody who lets it through.
                    answer.set_exception(copy.copy(e))
        except asyncio.CancelledError:  # the loop ends
            for answers in wanted.values():
                for answer in _open(answers):
                    answer.cancel()
            raise
        else:
            for answers, row in zip(wanted.values(), rows, strict=True):
                for answer in _open(answers):
                    answer.set_result(row)


def _open(answers: Sequence[asyncio.Future[Row]]) -> list[asyncio.Future[Row]]:
    """Of those who still wait; some may have been stopped meanwhile."""
    return [answer for answer in answers if not answer.done()]


async def read_rows(redis: Redis, places: Sequence[Place]) -> list[Row]:
    """Guards and bodies of one moment, in the order of the places.

    Raises:
        redis.exceptions.RedisError: the store is away.
    """
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
