"""Timers of the simulation: stages that take a while, deadlines, and delayed reconciles.

Controllers are level-based: they reconcile an object as often as it changes. `is_due` turns a delay
into such a condition: the first call starts a timer, later calls return whether it has elapsed, and
when it has, the object is reconciled again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from datetime import timedelta
    from random import Random

    from fleetbus_emulator.controllers.runtime.clock import Timer, Timers
    from fleetbus_emulator.controllers.runtime.timing import Timing

Item = TypeVar("Item", bound=Hashable)
LONGEST = 1e8  # seconds; deadlines beyond are looked at again then


@dataclass(slots=True)
class _Stage:
    name: Hashable
    timer: Timer | None  # None once the time is over


class StageTimers(Generic[Item]):
    """The timers of a simulation.

    Args:
        timing: Gives the jitter.
        random: Chooses it.
        timers: What calls later.
        wake: Called with the item whose time is over.
    """

    def __init__(
        self, timing: Timing, random: Random, timers: Timers, wake: Callable[[Item], None]
    ) -> None:
        self._timing = timing
        self._random = random
        self._timers = timers
        self._wake = wake
        self._stages: dict[Item, _Stage] = {}
        self._alarms: dict[Item, Timer] = {}
        self._notices: dict[Item, Timer] = {}
        self._running = 0  # stages whose time is not over

    @property
    def is_idle(self) -> bool:
        """Whether no stage is running. Alarms do not count: they are deadlines."""
        return not self._running and not self._notices

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
        timer = self._timers.call_later(seconds, self._elapse, item)
        self._stages[item] = _Stage(stage, timer)
        self._running += 1
        return False

    def alarm(self, item: Item, seconds: float) -> None:
        """Have the item looked at again after this time; replaces an earlier alarm of the item."""
        self.cancel_alarm(item)
        self._alarms[item] = self._timers.call_later(min(seconds, LONGEST), self._fire_alarm, item)

    def cancel_alarm(self, item: Item) -> None:
        """Drop the item's alarm."""
        alarm = self._alarms.pop(item, None)
        if alarm is not None:
            alarm.cancel()

    def call_once(self, item: Item, delay: timedelta) -> None:
        """Have the item looked at after the delay, together with what happens to it meanwhile."""
        if item not in self._notices:
            seconds = self._timing.jittered(delay, self._random)
            self._notices[item] = self._timers.call_later(seconds, self._fire_delayed, item)

    def forget(self, item: Item) -> None:
        """Stop the timers of an item."""
        self._leave(item)
        self.cancel_alarm(item)
        notice = self._notices.pop(item, None)
        if notice is not None:
            notice.cancel()

    def clear(self) -> None:
        """Stop all timers."""
        for item in [*self._stages, *self._alarms, *self._notices]:
            self.forget(item)

    def _leave(self, item: Item) -> None:
        stage = self._stages.pop(item, None)
        if stage is not None and stage.timer is not None:
            stage.timer.cancel()
            self._running -= 1

    def _elapse(self, item: Item) -> None:
        self._stages[item].timer = None
        self._running -= 1
        self._wake(item)

    def _fire_alarm(self, item: Item) -> None:
        self._alarms.pop(item, None)
        self._wake(item)

    def _fire_delayed(self, item: Item) -> None:
        self._notices.pop(item, None)
        self._wake(item)
