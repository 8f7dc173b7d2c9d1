"""The progress notifications of a cluster's store, for bookmarks.

A watch cache knows of a type only what its events say, and what etcd reports from time to time: all
that there is up to this revision has been sent. So a real server has no news for a bookmark of a
quiet type until then, 10 minutes apart by default.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


class StoreProgress:
    """Reports of one cluster's store.

    Args:
        every: The distance of two reports.
        now: A monotonic clock, in seconds.
    """

    def __init__(self, every: timedelta, *, now: Callable[[], float] = time.monotonic) -> None:
        self._every = every.total_seconds()
        self._now = now
        self._began = now()
        self._reports = 0
        self._rv = 0

    def reported(self, rv: int) -> int:
        """The revision of the latest report; call it before each write, too.

        Args:
            rv: The store's revision, unchanged since the call before.
        """
        due = int((self._now() - self._began) / self._every)
        if due > self._reports:
            self._reports, self._rv = due, rv
        return min(self._rv, rv)  # it may have been rolled back
