"""Back-off between requests to an API server (rule W19)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from fleetbus.errors import FleetbusError, KubeError
from fleetbus.process.pauses import Pauses


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """client-go's values: 0.8 s, doubled up to 30 s, each with jitter of up to its own length."""

    first: timedelta = timedelta(seconds=0.8)
    cap: timedelta = timedelta(seconds=30)
    reset_after: timedelta = timedelta(minutes=2)
    """After this long without a failure the delays start over."""


class ApiBackoff:
    """The delays between the attempts of one list-and-watch, or of one other repeated request.

    Args:
        policy: the growth of the delays.
        now: a monotonic clock, in seconds.
        jitter: returns a number between 0 and 1; spreads clients that failed together.
    """

    def __init__(
        self,
        policy: BackoffPolicy | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy or BackoffPolicy()
        self._now = now
        self._jitter = jitter
        self._pauses = Pauses(self._policy.first, self._policy.cap)
        self._failed_until = float("-inf")

    def delay(self, error: BaseException | None = None) -> timedelta:
        """The time to wait after this failure, at least its `Retry-After`."""
        if self._now() - self._failed_until > self._policy.reset_after.total_seconds():
            self._pauses.reset()
        seconds = self._pauses.next().total_seconds() * (1 + self._jitter())
        if isinstance(error, KubeError):
            seconds = max(seconds, error.retry_after.total_seconds())
        self._failed_until = self._now() + seconds
        return timedelta(seconds=seconds)

    async def pause(self, error: FleetbusError) -> None:
        """Wait after this failure."""
        await asyncio.sleep(self.delay(error).total_seconds())
