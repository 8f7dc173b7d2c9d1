"""Keeps the last ones of many, in a bounded number of bytes (rule A8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fleetbus_query_api.fields.pages import MAX_PAGE_BYTES

T = TypeVar("T")


class Latest(Generic[T]):
    """The last ones of many; at least one is kept, however large it is.

    Args:
        most: how many, at most.
        size_of: the bytes of one.
    """

    def __init__(self, most: int, *, size_of: Callable[[T], int]) -> None:
        self._most = most
        self._size_of = size_of
        self._size = 0
        self.kept = deque[T]()
        self.total = 0

    def add(self, item: T) -> None:
        """Add one; the first ones go."""
        self.total += 1
        self.kept.append(item)
        self._size += self._size_of(item)
        while len(self.kept) > self._most or (self._size > MAX_PAGE_BYTES and len(self.kept) > 1):
            self._size -= self._size_of(self.kept.popleft())
