"""Decides which conflicting fields may be taken back (rules D3, D6, D13).

The server answers an apply with a conflict both for a manual change and for a field of another
controller, and names who holds it. A plain update of an object that we have applied before is
drift, which policy Correct undoes. A manager that applies has declared the field its own, one that
writes through a subresource is a controller, and `.spec.replicas` belongs to the autoscaler by
convention: these are reported as conflicts, and left to the author.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fleetbus.errors import Conflict
from fleetbus.kube.applied import digest, facts_of
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus_distributor.health.fields import items, text
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.targets.drift_report import Drift
from fleetbus_distributor.targets.outcome import ObjectOutcome

_UPDATED_BY: Final = re.compile(r'conflict with "[^"]*" using ')
_HELD_BY: Final = re.compile(r'conflict with "([^"]*)"(?:.* at (\S+))?')
MAX_CAUSES: Final = 20
"""Number of causes that are shown; a server may name any number."""
_AUTOSCALED: Final = ".spec.replicas"
_WINDOW: Final = timedelta(minutes=10)
_MAX_CORRECTIONS: Final = 5
"""Corrections of one object per window: more frequent changes are not made by hand."""
_MOST_OBJECTS: Final = 10_000
"""The objects that were not corrected for the longest go first."""
KEEPS_CHANGING: Final = "KeepsChanging"
"""The reason of an object that no longer is as it should be soon after each write."""


def is_hand_made(error: Conflict, live: Mapping[str, Any], manager: str) -> bool:
    """Whether all fields in conflict were ours and were changed by plain updates."""
    causes = conflicts(error)
    was_ours = was_applied(live, manager)
    return was_ours and bool(causes) and all(map(_is_by_hand, causes))


def is_free_to_adopt(error: Conflict, live: Mapping[str, Any], manager: str) -> bool:
    """Whether only plain updates, or a former owner's mark, hold fields of an unapplied object.

    Policy Adopt takes those fields; fields that another manager applies stay in conflict.
    """
    causes = conflicts(error)
    is_new = not was_applied(live, manager)
    return is_new and bool(causes) and all(_is_mark(one) or _is_update(one) for one in causes)


def fields_in_conflict(error: Conflict) -> list[Drift]:
    """The fields that others hold, each with its manager, and the time if the server tells."""
    found: list[Drift] = []
    for cause in conflicts(error)[:MAX_CAUSES]:
        match = _HELD_BY.match(text(cause.get("message")))
        manager, when = match.groups("") if match else ("", "")
        found.append(Drift(text(cause.get("field")), manager, when))
    return found


def conflicts(error: Conflict) -> list[dict[str, Any]]:
    """The causes that name a field of another manager."""
    causes = items(error.details.get("causes"))
    return [one for one in causes if one.get("reason") == "FieldManagerConflict"]


def _is_by_hand(cause: Mapping[str, Any]) -> bool:
    return _is_update(cause) and cause.get("field") != _AUTOSCALED


def _is_update(cause: Mapping[str, Any]) -> bool:
    return _UPDATED_BY.match(text(cause.get("message"))) is not None


def _is_mark(cause: Mapping[str, Any]) -> bool:
    field = text(cause.get("field"))
    return field.endswith((f".{OWNER_UID_LABEL}", f".{OWNER_ANNOTATION}"))


def was_applied(live: Mapping[str, Any], manager: str) -> bool:
    """Whether a manager has applied an object before."""
    entries = items(live["metadata"].get("managedFields"))
    return any(one.get("manager") == manager and one.get("operation") == "Apply" for one in entries)


@dataclass(slots=True)
class _Corrected:
    """The writes to one object under one configuration."""

    wanted: bytes
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

    def has_room(self, cluster: str, wanted: Object, live: Object) -> bool:
        """Whether a configuration may be written once more to an object."""
        known = self._objects.get(_key(cluster, live))
        if known is None or known.wanted != digest(wanted):
            return True
        oldest = self._now() - _WINDOW.total_seconds()
        while known.times and known.times[0] < oldest:
            known.times.popleft()
        return len(known.times) < _MAX_CORRECTIONS

    def count(
        self, cluster: str, wanted: Object, live: Object, manager: str, *, is_same: bool
    ) -> None:
        """Count a write.

        Args:
            cluster: the name of the cluster.
            wanted: the configuration that was written.
            live: the object before that.
            manager: our field manager.
            is_same: whether the object had it before; else the first write is no correction.
        """
        key, configuration = _key(cluster, live), digest(wanted)
        known = self._objects.get(key)
        is_first = known is None or known.wanted != configuration
        times: deque[float] = deque() if known is None or is_first else known.times
        if is_same or not is_first:
            times.append(self._now())
        self._objects[key] = _Corrected(configuration, times, facts_of(wanted, live, manager))
        self._objects.move_to_end(key)
        if len(self._objects) > _MOST_OBJECTS:
            self._objects.popitem(last=False)

    def stop(
        self, cluster: str, wanted: Object, live: Object, manager: str, outcome: ObjectOutcome
    ) -> None:
        """Give up: `outcome` is reported until the configuration or the object changes.

        An object that is not as it was before the last write is only left alone for a while.
        """
        known = self._objects.get(_key(cluster, live))
        facts = facts_of(wanted, live, manager)
        if known is not None and known.before == facts:
            known.stopped = (facts, outcome)

    def stopped(
        self, cluster: str, wanted: Object, live: Object, manager: str
    ) -> ObjectOutcome | None:
        """The outcome that was reported when we gave up; None unless that still holds."""
        known = self._objects.get(_key(cluster, live))
        if known is None or known.stopped is None:
            return None
        facts, outcome = known.stopped
        return outcome if facts == facts_of(wanted, live, manager) else None


def _key(cluster: str, live: Object) -> tuple[str, str]:
    return cluster, str(live["metadata"].get("uid"))
