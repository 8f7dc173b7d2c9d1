"""Time as the simulation has it: stages that last, and deadlines that are not waited for.

Controllers are level-based: they look at an object as often as it changes. `is_due` turns "this
takes a while" into such a question: the first time it is asked it starts the clock, later it tells
whether the time is over, and when it is over the object is looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from datetime import timedelta
    from random import Random

    from fleetbus_devfleet.sim.timing import Timing

Item = TypeVar("Item", bound=Hashable)


@dataclass(slots=True)
class _Stage:
    name: Hashable
    timer: asyncio.TimerHandle | None  # None once the time is over


class Pace(Generic[Item]):
    """The timers of a simulation.

    Args:
        timing: Gives the jitter.
        random: Chooses it.
        wake: Called with the item whose time is over.
    """

    def __init__(self, timing: Timing, random: Random, wake: Callable[[Item], None]) -> None:
        self._timing = timing
        self._random = random
        self._wake = wake
        self._stages: dict[Item, _Stage] = {}
        self._alarms: dict[Item, asyncio.TimerHandle] = {}
        self._running = 0  # stages whose time is not over

    @property
    def is_idle(self) -> bool:
        """Whether no stage is running. Alarms do not count: nobody waits for a deadline."""
        return not self._running

    def is_due(self, item: Item, stage: Hashable, delay: timedelta) -> bool:
        """Whether the stage that the item is in has lasted long enough.

        The time begins when the stage is first asked for; another stage of the item ends it.
        """
        current = self._stages.get(item)
        if current is not None and current.name == stage:
            return current.timer is None
        self._leave(item)
        seconds = self._timing.jittered(delay, self._random)
        if seconds <= 0:
            return True
        timer = asyncio.get_running_loop().call_later(seconds, self._elapse, item)
        self._stages[item] = _Stage(stage, timer)
        self._running += 1
        return False

    def alarm(self, item: Item, seconds: float) -> None:
        """Have the item looked at again after this time; replaces an earlier alarm of the item."""
        self._silence(item)
        loop = asyncio.get_running_loop()
        self._alarms[item] = loop.call_later(max(seconds, 0), self._ring, item)

    def forget(self, item: Item) -> None:
        """Stop the timers of an item."""
        self._leave(item)
        self._silence(item)

    def clear(self) -> None:
        """Stop all timers."""
        for item in [*self._stages, *self._alarms]:
            self.forget(item)

    def _leave(self, item: Item) -> None:
        stage = self._stages.pop(item, None)
        if stage is not None and stage.timer is not None:
            stage.timer.cancel()
            self._running -= 1

    def _silence(self, item: Item) -> None:
        alarm = self._alarms.pop(item, None)
        if alarm is not None:
            alarm.cancel()

    def _elapse(self, item: Item) -> None:
        self._stages[item].timer = None
        self._running -= 1
        self._wake(item)

    def _ring(self, item: Item) -> None:
        self._alarms.pop(item, None)
        self._wake(item)
