"""The time limit of runs: one timer for all that are running, instead of one for each."""

from __future__ import annotations

import asyncio
from datetime import timedelta


class TimeLimits:
    """Ends runs of one controller after the same time.

    Args:
        limit: the time.
    """

    def __init__(self, limit: timedelta) -> None:
        self._seconds = limit.total_seconds()
        self._timer: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Timeout, float] = {}
        """When each is over, the first one first."""

    def start(self) -> asyncio.Timeout:
        """The limit of a run, as `asyncio.timeout`: to be entered at once, and ended after it."""
        loop = asyncio.get_running_loop()
        timeout, end = asyncio.Timeout(None), loop.time() + self._seconds
        self._running[timeout] = end
        if self._timer is None:
            self._timer = loop.call_at(end, self._expire)
        return timeout

    def end(self, timeout: asyncio.Timeout) -> None:
        """Forget the limit of a run that has ended."""
        self._running.pop(timeout, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        for timeout, end in list(self._running.items()):
            if end > loop.time():
                self._timer = loop.call_at(end, self._expire)
                return
            del self._running[timeout]
            timeout.reschedule(end)
