"""When the garbage collector works: seldom on its own, and whole at intervals.

By its own thresholds it would look through all objects of a service again and again, although most
of them stay. But what it does not look at is never freed: an error holds its traceback, which holds
the frames, whose tasks hold the error. A watcher whose cluster is away every minute grew by 30 MiB
an hour that way.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

_EVERY: Final = 300.0
"""Seconds between two collections: what is left behind in that time is a few MiB."""
_SHARE: Final = 5_000
"""A collection that takes a second, with millions of objects, is repeated after so many."""


def leave_startup_objects() -> None:
    """Exclude the objects there are, which live for ever, and collect seldom from now on.

    It halves the work of the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1000)


async def collect_garbage(every: float = _EVERY) -> None:
    """Collect all garbage at intervals, until cancelled.

    Args:
        every: seconds; longer where it takes long, because the event loop stands still meanwhile.
    """
    pause = every
    while True:
        await asyncio.sleep(pause)
        began = time.thread_time()  # not what other processes took meanwhile
        gc.collect()
        pause = pause_after(time.thread_time() - began, every)


def pause_after(seconds: float, every: float = _EVERY) -> float:
    """The pause after a collection that took so long."""
    return max(every, _SHARE * seconds)
