"""A cache of bounded size whose entries expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """Values by key, each until its time is over; beyond the capacity the oldest ones are dropped.

    Args:
        capacity: the most entries.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._entries: dict[K, tuple[V, float]] = {}

    def get(self, key: K) -> V | None:
        """The value of a key; None if there is none, or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, until = entry
        if self._clock() >= until:
            del self._entries[key]
            return None
        return value

    def put(self, key: K, value: V, keep: timedelta) -> None:
        """Keep a value for so long."""
        self._entries.pop(key, None)
        while len(self._entries) >= self._capacity:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (value, self._clock() + keep.total_seconds())
