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
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

from fleetbus.errors import Conflict
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus_distributor.targets.drift_report import Drift

_UPDATED_BY: Final = re.compile(r'conflict with "[^"]*" using ')
_HELD_BY: Final = re.compile(r'conflict with "([^"]*)"(?:.* at (\S+))?')
_AUTOSCALED: Final = ".spec.replicas"
_WINDOW: Final = timedelta(minutes=10)
_MAX_CORRECTIONS: Final = 5
"""Corrections of one object per window: more frequent changes are not made by hand."""


def is_hand_made(error: Conflict, live: Mapping[str, Any], manager: str) -> bool:
    """Whether all fields in conflict were ours and were changed by plain updates."""
    causes = _conflicts(error)
    was_ours = was_applied(live, manager)
    return was_ours and bool(causes) and all(map(_is_by_hand, causes))


def is_free_to_adopt(error: Conflict, live: Mapping[str, Any], manager: str) -> bool:
    """Whether only plain updates, or a former owner's mark, hold fields of an unapplied object.

    Policy Adopt takes those fields; fields that another manager applies stay in conflict.
    """
    causes = _conflicts(error)
    is_new = not was_applied(live, manager)
    return is_new and bool(causes) and all(_is_mark(one) or _is_update(one) for one in causes)


def fields_in_conflict(error: Conflict) -> list[Drift]:
    """The fields that others hold, each with its manager, and the time if the server tells."""
    found: list[Drift] = []
    for cause in _conflicts(error):
        match = _HELD_BY.match(cause.get("message", ""))
        manager, when = match.groups("") if match else ("", "")
        found.append(Drift(cause.get("field", ""), manager, when))
    return found


def _conflicts(error: Conflict) -> list[dict[str, str]]:
    causes = cast("list[dict[str, str]]", error.details.get("causes") or [])
    return [one for one in causes if one.get("reason") == "FieldManagerConflict"]


def _is_by_hand(cause: Mapping[str, str]) -> bool:
    return _is_update(cause) and cause.get("field") != _AUTOSCALED


def _is_update(cause: Mapping[str, str]) -> bool:
    return _UPDATED_BY.match(cause.get("message", "")) is not None


def _is_mark(cause: Mapping[str, str]) -> bool:
    field = cause.get("field", "")
    return field.endswith((f".{OWNER_UID_LABEL}", f".{OWNER_ANNOTATION}"))


def was_applied(live: Mapping[str, Any], manager: str) -> bool:
    """Whether a manager has applied an object before."""
    entries = cast("list[dict[str, str]]", live["metadata"].get("managedFields") or [])
    return any(one["manager"] == manager and one["operation"] == "Apply" for one in entries)


class Corrections:
    """Limits how often an object is corrected, in this process only.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: dict[str, deque[float]] = {}

    def may_correct(self, uid: str) -> bool:
        """Count one correction of an object; False if there were too many lately."""
        now = self._now()
        self._forget(now)
        times = self._times.setdefault(uid, deque())
        if len(times) >= _MAX_CORRECTIONS:
            return False
        times.append(now)
        return True

    def _forget(self, now: float) -> None:
        oldest = now - _WINDOW.total_seconds()
        for uid, times in list(self._times.items()):
            while times and times[0] < oldest:
                times.popleft()
            if not times:
                del self._times[uid]
