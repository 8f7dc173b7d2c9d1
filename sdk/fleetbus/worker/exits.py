"""A task of an author's function that calls `sys.exit` ends itself, and not the process.

In the function itself, a reconcile function, a mapping function or a predicate, that is one more
failure (rule R8). In a task that the function has started, asyncio lets it through to the top, and
a KeyboardInterrupt as well: all runs of the process would be cut off, again and again. So the event
loop makes the tasks of such functions from coroutines that let neither out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from fleetbus.process.error_text import render
from fleetbus.run.user_code import is_user_code

log = structlog.get_logger()


class ExitInTask(RuntimeError):
    """A task of an author's function wanted to end the process; raised to who awaits the task."""


class _Contained(Coroutine[Any, Any, Any]):
    """The same coroutine; what would end the loop comes out of it as `ExitInTask`."""

    def __init__(self, inside: Coroutine[Any, Any, Any]) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        # What debuggers and the names of tasks look at.
        return getattr(self._inside, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inside.__await__())

    def send(self, value: Any, /) -> Any:
        try:
            return self._inside.send(value)
        except (SystemExit, KeyboardInterrupt) as e:
            raise _told(e) from e

    def throw(self, *error: Any) -> Any:
        try:
            return self._inside.throw(*error)
        except (SystemExit, KeyboardInterrupt) as e:
            raise _told(e) from e

    def close(self) -> None:
        self._inside.close()


def _told(error: SystemExit | KeyboardInterrupt) -> ExitInTask:
    task = asyncio.current_task()
    log.error(
        "task_exited",
        task=task.get_name() if task else "",
        # Without its text: nobody here knows whether the controller handles Secrets.
        code=error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else None,
        exception=render(error, is_quiet=True),
        hint="raise an error; a process ends by SIGTERM",
    )
    return ExitInTask(f"a task of the controller raised {type(error).__name__}")


@asynccontextmanager
async def contain_exits() -> AsyncGenerator[None]:
    """While this lasts, no task that an author's function starts can end the process.

    Only how the running loop makes tasks changes, and only for those that such functions make.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    make: Callable[..., asyncio.Future[Any]] = before or _plain_task

    def make_task(
        loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Future[Any]:
        contained = _Contained(work) if is_user_code() else work
        return make(loop, contained, **options)

    loop.set_task_factory(make_task)
    try:
        yield
    finally:
        loop.set_task_factory(before)


def _plain_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, **options)
