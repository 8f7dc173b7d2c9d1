"""Ends fights over objects: each is corrected so many times in a while, then left as it is (D6)."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.kube.applied import digest, facts_of
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.targets.outcome import ObjectOutcome

_WINDOW: Final = timedelta(minutes=10)
_MAX_CORRECTIONS: Final = 5
"""Corrections of one object per window: more frequent changes are not made by hand."""
_MOST_OBJECTS: Final = 10_000
"""The objects that were not corrected for the longest go first."""


@dataclass(slots=True)
class _Corrected:
    """The writes to one object under one configuration."""

    configuration: bytes
    times: deque[float]
    before: bytes
    """The facts before the last write."""
    stopped: tuple[bytes, ObjectOutcome] | None = None
    """The facts when we gave up, and what was reported."""


class Corrections:
    """Ends a fight over an object, in this process only.

    Whatever takes our fields away after each write, a controller, a webhook or a cron job, would
    make us write for ever. So one configuration is written to one object so many times per window,
    then no more until the configuration or the object becomes another one.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._objects: OrderedDict[tuple[str, str], _Corrected] = OrderedDict()

    def has_room(self, cluster: str, configuration: Object, live: Object) -> bool:
        """Whether a configuration may be written once more to an object."""
        corrected = self._objects.get(_key(cluster, live))
        if corrected is None or corrected.configuration != digest(configuration):
            return True
        oldest = self._now() - _WINDOW.total_seconds()
        while corrected.times and corrected.times[0] < oldest:
            corrected.times.popleft()
        return len(corrected.times) < _MAX_CORRECTIONS

    def count(
        self, cluster: str, configuration: Object, live: Object, manager: str, *, is_same: bool
    ) -> None:
        """Count a write.

        Args:
            cluster: the name of the cluster.
            configuration: the configuration that was written.
            live: the object before that.
            manager: our field manager.
            is_same: whether the object had it before; else the first write is no correction.
        """
        key, hashed = _key(cluster, live), digest(configuration)
        corrected = self._objects.get(key)
        is_first = corrected is None or corrected.configuration != hashed
        times: deque[float] = deque() if corrected is None or is_first else corrected.times
        if is_same or not is_first:
            times.append(self._now())
        self._objects[key] = _Corrected(hashed, times, facts_of(configuration, live, manager))
        self._objects.move_to_end(key)
        if len(self._objects) > _MOST_OBJECTS:
            self._objects.popitem(last=False)

    def stop(
        self,
        cluster: str,
        configuration: Object,
        live: Object,
        manager: str,
        outcome: ObjectOutcome,
    ) -> None:
        """Give up: `outcome` is reported until the configuration or the object changes.

        An object that is not as it was before the last write is only left alone for a while.
        """
        corrected = self._objects.get(_key(cluster, live))
        facts = facts_of(configuration, live, manager)
        if corrected is not None and corrected.before == facts:
            corrected.stopped = (facts, outcome)

    def stopped(
        self, cluster: str, configuration: Object, live: Object, manager: str
    ) -> ObjectOutcome | None:
        """The outcome that was reported when we gave up; None unless that still holds."""
        corrected = self._objects.get(_key(cluster, live))
        if corrected is None or corrected.stopped is None:
            return None
        facts, outcome = corrected.stopped
        return outcome if facts == facts_of(configuration, live, manager) else None


def _key(cluster: str, live: Object) -> tuple[str, str]:
    return cluster, str(live["metadata"].get("uid"))
