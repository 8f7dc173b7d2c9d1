"""Clocks of a simulation: the event loop's, or one that only moves when advanced.

    clock = ManualClock()
    cluster = Cluster("alpha", clock=clock)
    async with simulate(cluster, timing=Timing.lifelike()) as (simulator,):
        cluster.create("apps/v1/deployments", deployment)
        await clock.advance(timedelta(seconds=5))     # five seconds of its life, at once

Everything that is due meanwhile happens in order, each at its own time, and what follows from it
before the next.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Protocol

FIRST_MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Do not call it."""
        ...


class Timers(Protocol):
    """Timers, of the event loop or of a simulated clock."""

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Call the callback in this time."""
        ...


class LoopTimers:
    """Timers of the running event loop."""

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Call the callback in this time."""
        return asyncio.get_running_loop().call_later(max(seconds, 0), callback, *args)


class _Due:
    """A timer of a ManualClock."""

    __slots__ = ("args", "callback", "moment", "number")

    def __init__(
        self, moment: datetime, number: int, callback: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.moment = moment
        self.number = number
        self.callback: Callable[..., None] | None = callback
        self.args = args

    def __lt__(self, other: _Due) -> bool:
        return (self.moment, self.number) < (other.moment, other.number)

    def cancel(self) -> None:
        """Do not call it."""
        self.callback = None

    def fire(self) -> None:
        """Call it now, unless it was cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(*self.args)


class ManualClock:
    """A clock that is moved by hand, for a cluster and its simulator.

    Args:
        start: The first moment, aware.
    """

    def __init__(self, start: datetime = FIRST_MOMENT) -> None:
        self._now = start
        self._due: list[_Due] = []
        self._numbers = count()
        self._drains: list[Callable[[], Awaitable[None]]] = []

    def __call__(self) -> datetime:
        """The time."""
        return self._now

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Call the callback when the clock has been moved by this time."""
        moment = self._now + timedelta(seconds=max(seconds, 0))
        timer = _Due(moment, next(self._numbers), callback, args)
        heapq.heappush(self._due, timer)
        return timer

    @property
    def timers(self) -> int:
        """The number of pending callbacks."""
        return sum(timer.callback is not None for timer in self._due)

    def join(self, drain: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Await `drain` after each step, so that it has its consequences; returns how to leave."""
        self._drains.append(drain)
        return lambda: self._drains.remove(drain)

    async def advance(self, by: timedelta) -> None:
        """Move the clock; what is due on the way happens at its time."""
        target = self._now + by
        await self._drained()
        while self._waits_until(target):
            await self.advance_to_next()
        self._now = max(self._now, target)
        await self._drained()

    async def advance_to_next(self) -> bool:
        """Move the clock to the next moment at which something is due; whether there was one."""
        if not self._waits_until(None):
            return False
        timer = heapq.heappop(self._due)
        self._now = max(self._now, timer.moment)
        timer.fire()
        await self._drained()
        return True

    def _waits_until(self, moment: datetime | None) -> bool:
        while self._due and self._due[0].callback is None:
            heapq.heappop(self._due)
        return bool(self._due) and (moment is None or self._due[0].moment <= moment)

    async def _drained(self) -> None:
        for drain in tuple(self._drains):
            await drain()
