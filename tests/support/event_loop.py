"""Measures for how long one task keeps the event loop from the others."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def longest_turn() -> AsyncGenerator[list[float]]:
    """The CPU time that the thread spent between two turns of the loop, at most, in seconds."""
    longest = [0.0]

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], now - last)
            last = now

    watching = asyncio.create_task(watch())
    try:
        yield longest
    finally:
        watching.cancel()
