"""Pauses between attempts: each is twice as long as the last, up to a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta


def pause_of(
    failures: int, first: timedelta, longest: timedelta, *, factor: float = 2
) -> timedelta:
    """Return the pause after so many failures in a row, counted from 1."""
    seconds, bound = first.total_seconds(), longest.total_seconds()
    for _ in range(failures - 1):
        if seconds >= bound:
            break
        seconds *= factor
    return timedelta(seconds=min(seconds, bound))


class Pauses:
    """The pauses of one loop.

    Args:
        first: the pause after the first failure.
        longest: the limit.
    """

    def __init__(self, first: timedelta, longest: timedelta) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self) -> timedelta:
        """Return the pause after one more failure."""
        self._failures += 1
        return pause_of(self._failures, self._first, self._longest)

    async def sleep(self) -> None:
        """Sleep after one more failure."""
        await asyncio.sleep(self.next().total_seconds())

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self._failures = 0
