"""What is to be looked at next: names in order, each at most once."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

Item = TypeVar("Item")


class WorkQueue(Generic[Item]):
    """A queue for one consumer that holds each item at most once.

    An item added while it waits keeps its place; one added while it is being worked on is handed
    out again.
    """

    def __init__(self) -> None:
        self._items: dict[Item, None] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Put an item at the end, unless it is already there."""
        self._items[item] = None
        self._filled.set()

    def clear(self) -> None:
        """Forget every item."""
        self._items.clear()
        self._filled.clear()

    async def wait(self) -> None:
        """Return as soon as there is an item."""
        await self._filled.wait()

    def pop(self) -> Item:
        """Take the first item.

        Raises:
            KeyError: There is none.
        """
        item = next(iter(self._items), None)
        if item is None:
            raise KeyError("the queue is empty")
        del self._items[item]
        if not self._items:
            self._filled.clear()
        return item
