"""Work that several requests wait for, and that ends when none of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SharedTask:
    """Runs a coroutine for everybody who waits for it.

    Args:
        work: the coroutine.
        on_end: called once, when it has ended or is given up.
        name: of the task.
    """

    def __init__(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[], None], *, name: str
    ) -> None:
        self._on_end = on_end
        self._waiting = 0
        self._has_ended = False
        self._task = asyncio.create_task(work, name=name)
        self._task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Wait for the end; raises what the work raises.

        Whoever is cancelled gives up only for itself; the last one cancels the work.
        """
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._end()
                self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # those who wait raise it
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end()
