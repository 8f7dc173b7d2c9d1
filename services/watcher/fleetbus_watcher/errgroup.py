"""Run coroutines concurrently as one group: the first error cancels the others and is raised.

Not `asyncio.TaskGroup`: there an error of a child hides a cancellation that arrives at the same
time, and a caller that retries after errors, as every loop here does, would never stop. Besides,
the one of Python 3.11 counts a cancellation for each failure and never takes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast


async def run_group(**bodies: Coroutine[Any, Any, None]) -> None:
    """Run named coroutines until all have returned or one has raised; none outlives the call.

    Raises:
        asyncio.CancelledError: the caller was cancelled, whatever else happened.
        BaseException: the first error of the coroutines, not wrapped in a group.
    """
    waiting = {asyncio.create_task(body, name=name) for name, body in bodies.items()}
    cancelled: asyncio.CancelledError | None = None
    errors: list[BaseException] = []
    while waiting:
        is_ending = bool(cancelled or errors)
        try:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as e:
            done, cancelled = set[asyncio.Task[None]](), e
        errors += [error for task in done if not task.cancelled() and (error := task.exception())]
        if not is_ending and (cancelled or errors):
            for task in waiting:
                task.cancel()
    if cancelled:
        raise cancelled
    if errors:
        raise _first(errors[0]) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
