"""The work queue: keys in order, each at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class WorkQueue(Generic[Item]):
    """A queue for one consumer that holds each item at most once.

    An item added while it waits keeps its place; one added while it is being worked on is handed
    out again. Items of a later rank wait until there is none of an earlier one.

    Args:
        rank_of: The rank of an item, from 0; always the same for the same item.
        ranks: How many ranks there are.
    """

    def __init__(self, rank_of: Callable[[Item], int], ranks: int) -> None:
        self._rank_of = rank_of
        self._ranks: tuple[dict[Item, None], ...] = tuple({} for _ in range(ranks))
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return sum(map(len, self._ranks))

    def add(self, item: Item) -> None:
        """Put an item at the end of its rank, unless it is already there."""
        self._ranks[self._rank_of(item)][item] = None
        self._note_size()

    def discard(self, item: Item) -> None:
        """Forget an item."""
        self._ranks[self._rank_of(item)].pop(item, None)
        self._note_size()

    def clear(self) -> None:
        """Forget every item."""
        for items in self._ranks:
            items.clear()
        self._note_size()

    async def wait(self) -> None:
        """Return as soon as there is an item."""
        await self._filled.wait()

    async def drained(self) -> None:
        """Return when there is none."""
        while len(self):
            await self._emptied.wait()

    def _note_size(self) -> None:
        if len(self):
            self._filled.set()
            self._emptied.clear()
        else:
            self._filled.clear()
            self._emptied.set()

    def pop(self) -> Item:
        """Take the first item.

        Raises:
            KeyError: There is none.
        """
        for items in self._ranks:
            for item in items:
                del items[item]
                self._note_size()
                return item
        raise KeyError("the queue is empty")
