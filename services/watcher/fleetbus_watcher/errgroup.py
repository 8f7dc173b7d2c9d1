"""Run coroutines concurrently as one group: the first outcome cancels the others.

Not `asyncio.TaskGroup`: there an error of a child hides a cancellation that arrives at the same
time, and a caller that retries after errors, as every loop here does, would never stop. Besides,
the one of Python 3.11 counts a cancellation for each failure and never takes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def run_group(**bodies: Coroutine[Any, Any, T]) -> T:
    """Run named coroutines until one has returned a value or raised; none outlives the call.

    Returns:
        The first value that is not None; None if all of them have returned None.

    Raises:
        asyncio.CancelledError: the caller was cancelled, whatever else happened.
        BaseException: the first error of the coroutines, not wrapped in a group.
    """
    waiting = {asyncio.create_task(body, name=name) for name, body in bodies.items()}
    cancelled: asyncio.CancelledError | None = None
    ended: list[asyncio.Task[T]] = []
    while waiting:
        is_ending = bool(cancelled or ended)
        try:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as e:
            done, cancelled = set[asyncio.Task[T]](), e
        # Of those that end at the same time an error comes first: a value must not hide it.
        ended += sorted(filter(_has_outcome, done), key=lambda task: task.exception() is None)
        if not is_ending and (cancelled or ended):
            for task in waiting:
                task.cancel()
    if cancelled:
        raise cancelled
    if not ended:
        return cast("T", None)
    if error := ended[0].exception():
        raise _first(error) from None
    return ended[0].result()


def _has_outcome(task: asyncio.Task[T]) -> bool:
    return not task.cancelled() and bool(task.exception() or task.result() is not None)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
