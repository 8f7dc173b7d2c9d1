"""Clusters, kinds and namespaces that were found away: not asked again for every parent.

When a cluster is down, or lacks the kind, all parents with a child there wait; the one that found
that looks again, the others take its answer for a while.
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
    """Who found it, and looks again."""


class UnavailablePlaces:
    """What this process found away, and until when that is believed.

    Args:
        period: how long.
        now: a monotonic clock in seconds.
    """

    def __init__(self, period: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._period = period.total_seconds()
        self._now = now
        # By cluster, and by (cluster, resource, namespace): bounded by what there is of them.
        self._entries: dict[tuple[str, ...], _Entry] = {}

    def note(self, place: Place, outcome: ChildOutcome, parent: Request) -> None:
        """Take note of what came of a child; that it is right ends the rest of its place."""
        cluster, resource, namespace, _ = place
        rest = _Entry(self._now() + self._period, outcome, parent)
        if outcome.state is ChildState.IN_SYNC:
            self._entries.pop((cluster,), None)
            self._entries.pop((cluster, resource, namespace), None)
        elif outcome.state is ChildState.UNREACHABLE:
            self._entries[(cluster,)] = rest
        elif outcome.state is ChildState.MISSING:
            self._entries[(cluster, resource, namespace)] = rest

    def of(self, place: Place, parent: Request) -> ChildOutcome | None:
        """What a look at this place would most likely answer; None if the parent shall look."""
        cluster, resource, namespace, _ = place
        for key in ((cluster,), (cluster, resource, namespace)):
            rest = self._entries.get(key)
            if rest is not None and rest.parent != parent and rest.until > self._now():
                return rest.outcome
        return None
