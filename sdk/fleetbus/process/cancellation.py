"""Workarounds for libraries that lose a cancellation, so that a loop never stops (rule B14).

nats-py swallows a cancellation while it waits for its buffer: `cancellable` raises it again.
`asyncio.wait_for` of Python 3.11 swallows one that arrives together with the result (fixed in
3.12), and nats-py's requests and redis-py's sends use it: `patch_wait_for` replaces it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

T = TypeVar("T")


class _Cancellable:
    """A class, as it is entered for every command: a generator costs three times as much."""

    __slots__ = ("_before", "_task")

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        self._before = task.cancelling() if task is not None else 0

    def __exit__(self, *_: object) -> None:
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


def cancellable() -> AbstractContextManager[None]:
    """Raise CancelledError at the end of the block if a cancellation was lost inside.

    A cancellation from before the block does not count, so that a cleanup may use it too.
    """
    return _Cancellable()


def is_stopped() -> bool:
    """Whether the running task was cancelled.

    If not, a CancelledError from a call comes from another task.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def is_stop(error: BaseException) -> bool:
    """Whether an exception from user code means the end of its task, and not a failure.

    A task is cancelled by us, or closed with its loop. Everything else was raised by the code, also
    a KeyboardInterrupt: the real one is a signal, which `run_until_stopped` handles.
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
    """`asyncio.wait_for` of Python 3.12."""
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
    """Cancel a task and wait for its end, whatever its result.

    `suppress(CancelledError): await task` would mistake our own cancellation for the task's.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieve it, so that asyncio does not log it


def patch_wait_for() -> None:
    """Replace the `asyncio.wait_for` of Python 3.11 by that of 3.12, for the whole process."""
    if sys.version_info < (3, 12):
        asyncio.wait_for = _wait_for
