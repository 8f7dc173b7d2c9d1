"""Tells who blocks the event loop: meanwhile no run of this process goes on, of any controller.

A thread asks the loop for a sign of life. When none comes for a while it logs, once, where the
thread of the loop stands, and once more when that is over. Leases last meanwhile (rule Q5).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import Counter

from fleetbus.process.error_text import render_stack

log = structlog.get_logger()

PATIENCE: Final = timedelta(seconds=1)
BLOCKS: Final = Counter(
    "fleetbus_event_loop_blocks_total",
    "How often something held the event loop for more than a second; the log shows where.",
)
_TICKS: Final = 4
"""Looks in this time: who was paused as a whole has not looked, and blames nobody."""


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
                    self._tell()
                continue
            if ticks >= _TICKS:
                log.warning("event_loop_recovered", seconds=round(time.monotonic() - asked_at, 1))
            ticks, asked_at = 0, time.monotonic()
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed

    def _tell(self) -> None:
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
    """While this lasts, whatever blocks the loop for longer than `PATIENCE` is named in the log."""
    watch = _LoopWatch(PATIENCE)
    watch.thread.start()
    try:
        yield
    finally:
        watch.stop()
        await asyncio.to_thread(watch.thread.join)
