"""Runs CPU work on the event loop in slices, so that no request delays another (rule A8).

A thread would not help: decoding and comparing hold the GIL, and the event loop would wait for it
each time it returns from the network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_TIME: Final = timedelta(milliseconds=2)
_IDLE_SECONDS: Final = 0.00005
"""A turn of the event loop that is shorter had nothing to do."""
_YIELD_SECONDS: Final = 0.005
"""To others between two slices, at most: if they are never idle, long work still goes on."""


class TimeSlices:
    """Lets the requests of a process take turns, slice by slice."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # fair: first come, first served

    async def run(self, step: Callable[[T], object], items: Iterable[T]) -> bool:
        """Call a function for one item after another until it returns something true.

        Args:
            step: the function; a single call is never interrupted.
            items: the items.

        Returns:
            Whether it returned something true; else all items are done.
        """
        remaining = iter(items)
        while True:
            async with self._turn:
                is_enough = _run_slice(step, remaining)
                if is_enough is not None:
                    return is_enough
                await _let_others_run()


async def _let_others_run() -> None:
    """Wait until nobody else has anything to do: a request takes several turns of the loop.

    With one turn between two slices it would wait for a slice as many times.
    """
    before = start = time.perf_counter()
    while before - start < _YIELD_SECONDS:
        await asyncio.sleep(0)
        now = time.perf_counter()
        if now - before < _IDLE_SECONDS:
            return
        before = now


def _run_slice(step: Callable[[T], object], items: Iterator[T]) -> bool | None:
    """Run until the slice is over; None if items are left."""
    end = time.perf_counter() + SLICE_TIME.total_seconds()
    for item in items:
        if step(item):
            return True
        if time.perf_counter() >= end:
            return None
    return False
