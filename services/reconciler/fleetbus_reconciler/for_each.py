"""Does the same for many clusters, some of them at once.

The projector looks after every cluster every few seconds, and one after the other each of them
would wait for the answers to the one before. Together their commands share round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 128
"""Most heartbeats of a batch, so that they take as long as one; and no more requests to API servers
than a process may have open."""

A = TypeVar("A")
T = TypeVar("T")


async def for_each(items: Iterable[A], do: Callable[[A], Awaitable[T]]) -> list[T]:
    """Await a function for each item; returns its results, in the order of the items.

    Raises:
        Exception: of one item, once no call is under way. It has stopped few of the others.
    """
    listed = list(items)
    waiting = iter(enumerate(listed))
    results: dict[int, T] = {}

    async def work() -> None:
        for index, item in waiting:
            results[index] = await do(item)

    workers = [work() for _ in range(min(AT_ONCE, len(listed)))]
    for outcome in await asyncio.gather(*workers, return_exceptions=True):
        if outcome is not None:
            raise outcome
    return [results[index] for index in range(len(listed))]
