"""Limits the requests per second to one API server, and keeps to its Retry-After (rule D11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from fleetbus.errors import TooManyRequests


class RequestLimiter:
    """A token bucket for all requests of one client, in the order in which they come.

    Args:
        qps: requests per second in the long run.
        burst: requests that may be sent at once after a pause.
        now: a monotonic clock in seconds.
    """

    def __init__(
        self, *, qps: float, burst: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._interval = 1 / qps
        self._saved = burst * self._interval
        # When the next token is there; behind the present by what was saved.
        self._next = float("-inf")
        self._paused_until = float("-inf")

    async def admit(self) -> None:
        """Wait until a request may be sent.

        Raises:
            TooManyRequests: the server has asked to wait; nothing was sent.
        """
        now = self._now()
        if now < self._paused_until:
            wait = timedelta(seconds=self._paused_until - now)
            message = f"the API server has asked to wait; {wait.total_seconds():.1f} s are left"
            error = TooManyRequests(429, "TooManyRequests", message)
            error.retry_after = wait
            raise error
        self._next = max(self._next, now - self._saved) + self._interval
        if self._next > now:
            await asyncio.sleep(self._next - now)

    def pause(self, duration: timedelta) -> None:
        """Refuse requests for so long: the server has answered 429."""
        self._paused_until = max(self._paused_until, self._now() + duration.total_seconds())
