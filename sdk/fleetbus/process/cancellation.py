"""Cures for libraries that lose a cancellation; a loop around such a call would never stop (B14).

nats-py swallows a cancellation while it waits for its buffer: `cancellable` gives it back.
`asyncio.wait_for` of Python 3.11 swallows one that comes together with the answer (mended in
3.12), and both nats-py's requests and redis-py's sends use it: `patch_wait_for` mends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


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


def is_stopped() -> bool:
    """Whether somebody has cancelled the running task.

    If not, a CancelledError that comes out of a call is that of another task.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def is_stop(error: BaseException) -> bool:
    """Whether what came out of user code is the end of the task that ran it, and no failure.

    A task is cancelled by us, or closed with its loop. Everything else was raised by the code, and
    so was a KeyboardInterrupt: the real one is a signal, which stops the loops (`process`).
    """
    if isinstance(error, asyncio.CancelledError):
        return is_stopped()
    return isinstance(error, GeneratorExit) and not _is_running()


def _is_running() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop runs
        return False


async def _wait_for(fut: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109 -- its shape
    """What `asyncio.wait_for` is from Python 3.12 on."""
    if timeout is not None and timeout <= 0:
        task = asyncio.ensure_future(fut)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            raise TimeoutError
        return task.result()
    async with asyncio.timeout(timeout):
        return await fut


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task of ours and wait for its end, whatever that is.

    `suppress(CancelledError): await task` would take our own cancellation for the task's.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen, so that asyncio does not complain


def patch_wait_for() -> None:
    """Put the `asyncio.wait_for` of Python 3.12 in the place of 3.11's, once for the process."""
    if sys.version_info < (3, 12):
        asyncio.wait_for = _wait_for
