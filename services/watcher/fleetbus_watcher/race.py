"""Run coroutines side by side as one: the first that fails ends all, and its error is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast


async def race(**bodies: Coroutine[Any, Any, None]) -> None:
    """Run named coroutines until all have returned or one has raised.

    Raises:
        BaseException: what the first of them raised, by itself instead of in a group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for name, body in bodies.items():
                group.create_task(body, name=name)
    except BaseExceptionGroup as failed:
        raise _first(failed) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", first))
    return first
