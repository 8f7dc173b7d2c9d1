"""Token buckets of many, by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MAX_NAMES: Final = 10_000
"""Names that are tracked; beyond that the one that was idle the longest is forgotten."""


class TokenBuckets:
    """Gives each name a burst of tokens, and then so many per second.

    Args:
        rate: tokens per second.
        burst: the most that a bucket holds.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # The tokens of each name, and when they were counted; the first was idle the longest.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Number of tracked names."""
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Take a token; returns 0, or after how many seconds there is one again."""
        now = self._clock()
        tokens, counted_at = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted_at) * self._rate)
        is_empty = tokens < 1
        self._buckets[name] = (tokens if is_empty else tokens - 1, now)
        if len(self._buckets) > MAX_NAMES:
            del self._buckets[next(iter(self._buckets))]
        return (1 - tokens) / self._rate if is_empty else 0.0
