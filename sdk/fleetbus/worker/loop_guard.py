"""Guards the event loop, which all controllers of a process share, against user code.

`report_blocked_loop` tells who blocks it: a thread asks the loop for a sign of life; when none
comes for a while it logs, once, where the loop's thread stands, and once more when that is over.
Leases last meanwhile (rule Q5).

`contain_exits` keeps a task of user code from ending the process. In the function itself, a
reconcile function, a mapping function or a predicate, `sys.exit` is one more failure (rule R8). In
a task that the function has started, asyncio lets it through to the top, and a KeyboardInterrupt as
well: all runs of the process would be cut off, again and again. So the loop makes the tasks of such
functions from coroutines that let neither out.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import structlog
from prometheus_client import Counter

from fleetbus.process.error_text import render, render_stack
from fleetbus.run.user_code import is_user_code

log = structlog.get_logger()

PATIENCE: Final = timedelta(seconds=1)
BLOCKS: Final = Counter(
    "fleetbus_event_loop_blocks_total",
    "How often something held the event loop for more than a second; the log shows where.",
)
_TICKS: Final = 4
"""Looks in this time: a process that was paused as a whole has not looked, and blames nobody."""


class _LoopWatch:
    """The thread; `answer` is called in the loop, everything else in the thread."""

    def __init__(self, patience: timedelta) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_of_loop = threading.get_ident()
        self._pause = patience.total_seconds() / _TICKS
        self._answered = threading.Event()
        self._answered.set()
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="loop watch", daemon=True)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        ticks, asked_at = 0, 0.0
        while not self._stopped.wait(self._pause):
            if not self._answered.is_set():
                ticks += 1
                if ticks == _TICKS:
                    self._report()
                continue
            if ticks >= _TICKS:
                log.warning("event_loop_recovered", seconds=round(time.monotonic() - asked_at, 1))
            ticks, asked_at = 0, time.monotonic()
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed

    def _report(self) -> None:
        task = asyncio.current_task(self._loop)
        BLOCKS.inc()
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the only way
        frame = frames.get(self._thread_of_loop)
        log.error(
            "event_loop_blocked",
            task=task.get_name() if task else "",
            hint="await, or use a plain `def`, which runs in a thread",
            stack=render_stack(frame) if frame else "",
        )


@asynccontextmanager
async def report_blocked_loop() -> AsyncGenerator[None]:
    """Log whatever blocks the running loop for longer than `PATIENCE`, while this lasts."""
    watch = _LoopWatch(PATIENCE)
    watch.thread.start()
    try:
        yield
    finally:
        watch.stop()
        await asyncio.to_thread(watch.thread.join)


# --- exits --------------------------------------------------------------------------------------


class ExitInTask(RuntimeError):
    """A task of user code tried to end the process; raised in whoever awaits the task."""


class _Contained(Coroutine[Any, Any, Any]):
    """The same coroutine; what would end the loop comes out of it as `ExitInTask`."""

    def __init__(self, inside: Coroutine[Any, Any, Any]) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        # Debuggers and the names of tasks read attributes of the coroutine.
        return getattr(self._inside, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inside.__await__())

    def send(self, value: Any, /) -> Any:
        try:
            return self._inside.send(value)
        except (SystemExit, KeyboardInterrupt) as e:
            raise _exit_in_task(e) from e

    def throw(self, *error: Any) -> Any:
        try:
            return self._inside.throw(*error)
        except (SystemExit, KeyboardInterrupt) as e:
            raise _exit_in_task(e) from e

    def close(self) -> None:
        self._inside.close()


def _exit_in_task(error: SystemExit | KeyboardInterrupt) -> ExitInTask:
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
    """Keep tasks that user code starts from ending the process, while this lasts.

    Only how the running loop makes tasks changes, and only for those that user code makes.
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
