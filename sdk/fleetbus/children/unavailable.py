"""Remembers unavailable clusters, kinds and namespaces, so that not every parent asks again.

If a cluster is down or lacks a kind, all parents with a child there wait. The parent that found
out checks again, the others use its outcome for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from fleetbus.children.policy import Place
from fleetbus.children.writes import ChildOutcome, ChildState
from fleetbus.reconcile import Request


class _Entry(NamedTuple):
    until: float
    outcome: ChildOutcome
    parent: Request
    """The parent that found out, and checks again."""


class UnavailablePlaces:
    """Places that this process found unavailable a short time ago.

    Args:
        period: how long an entry is used.
        now: a monotonic clock in seconds.
    """

    def __init__(self, period: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._period = period.total_seconds()
        self._now = now
        # By (cluster,) or (cluster, resource, namespace), so bounded by the number of those.
        self._entries: dict[tuple[str, ...], _Entry] = {}

    def update(self, place: Place, outcome: ChildOutcome, parent: Request) -> None:
        """Remember an outcome; a child in sync makes its place available again."""
        cluster, resource, namespace, _ = place
        entry = _Entry(self._now() + self._period, outcome, parent)
        if outcome.state is ChildState.IN_SYNC:
            self._entries.pop((cluster,), None)
            self._entries.pop((cluster, resource, namespace), None)
        elif outcome.state is ChildState.UNREACHABLE:
            self._entries[(cluster,)] = entry
        elif outcome.state is ChildState.MISSING:
            self._entries[(cluster, resource, namespace)] = entry

    def outcome_for(self, place: Place, parent: Request) -> ChildOutcome | None:
        """Return the remembered outcome for a place; None if the parent must check itself."""
        cluster, resource, namespace, _ = place
        for key in ((cluster,), (cluster, resource, namespace)):
            entry = self._entries.get(key)
            if entry is not None and entry.parent != parent and entry.until > self._now():
                return entry.outcome
        return None
