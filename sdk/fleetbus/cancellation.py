"""Give a swallowed cancellation back (rule B14).

nats-py swallows a cancellation while it waits for its buffer, and `asyncio.wait_for` of Python
3.11, which nats-py's requests use, does when the answer comes at the same moment. A loop around
such a call would never stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def cancellable() -> Generator[None]:
    """Raise CancelledError at the end of the block if a cancellation came and got lost inside.

    A cancellation from before the block is not counted, so that a clean-up may still use it.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
