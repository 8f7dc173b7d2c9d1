"""CPU work on the event loop in slices, so that no question holds up another one (rule A8).

A thread would not help: decoding and comparing hold the interpreter's lock, and the loop would wait
for it each time it comes back from the network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_TIME: Final = timedelta(milliseconds=2)


class TimeSlices:
    """Has the questions of a process take turns: one slice for one of them, then everybody else."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # fair: the first to wait is the next

    async def run(self, step: Callable[[T], object], items: Iterable[T]) -> bool:
        """Call a function for one item after another until it answers something true.

        Args:
            step: what to do; a single call is never interrupted.
            items: for what.

        Returns:
            Whether it answered something true; else all items are done.
        """
        rest = iter(items)
        while True:
            async with self._turn:
                is_enough = _run_slice(step, rest)
                if is_enough is not None:
                    return is_enough
                await asyncio.sleep(0)  # before the next one's slice


def _run_slice(step: Callable[[T], object], items: Iterator[T]) -> bool | None:
    """As far as the time goes; None when there is more to do."""
    end = time.perf_counter() + SLICE_TIME.total_seconds()
    for item in items:
        if step(item):
            return True
        if time.perf_counter() >= end:
            return None
    return False
