"""When something is due in a watch that is not an event."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

from fleetbus_query_api.watch.requests import WatchRequest

BOOKMARK_EVERY: Final = timedelta(minutes=1)
RECHECK_EVERY: Final = timedelta(seconds=30)
"""Time for which a change of the clusters that a user may read goes unnoticed, beyond the caches
(A3)."""
LONGEST: Final = timedelta(hours=1)
"""The longest watch; without a timeout they end after half of it to all of it."""


class Timers:
    """When something is due that is not an event."""

    def __init__(self, request: WatchRequest) -> None:
        self._loop = asyncio.get_running_loop()
        longest = LONGEST.total_seconds()
        timeout = longest * random.uniform(0.5, 1)  # noqa: S311  # so that not all end at once
        if request.timeout is not None:
            timeout = min(request.timeout.total_seconds(), longest)
        recheck = RECHECK_EVERY.total_seconds()
        self._every = {"timeout": timeout, "recheck": recheck}
        if request.has_bookmarks:
            self._every["bookmark"] = BOOKMARK_EVERY.total_seconds()
        now = self._loop.time()
        self._due = {name: now + every for name, every in self._every.items()}
        self._due["recheck"] -= random.uniform(0, recheck / 2)  # noqa: S311  # likewise
        if request.bookmarks_at_once:
            self._due["bookmark"] = now
        if request.periodic is not None:
            self._every["periodic"] = request.periodic.interval.total_seconds()
            self._due["periodic"] = now

    def is_due(self, name: str) -> bool:
        """Whether something is due; then it is due again after its interval."""
        due, now = self._due.get(name), self._loop.time()
        if due is None or now < due:
            return False
        self._due[name] = now + self._every[name]
        return True

    def next(self) -> float:
        """When something is due next, in the loop's time."""
        return min(self._due.values())
