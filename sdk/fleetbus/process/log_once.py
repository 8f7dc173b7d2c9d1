"""A trouble that lasts is told when it begins, and again now and then: not at each attempt."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

AGAIN_AFTER: Final = timedelta(seconds=30)


class Stretches:
    """Says which of the lines about troubles that come again and again are news.

    Args:
        clock: seconds, that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # What was told last of each place and when; the caller has few places.
        self._told: dict[Hashable, tuple[str, float]] = {}

    def is_news(self, said: str = "", place: Hashable = "") -> bool:
        """Whether to tell it: it differs from the last line, or that was `AGAIN_AFTER` ago.

        Args:
            said: what would be told.
            place: what has the trouble, if one object looks after several.
        """
        now = self._clock()
        last = self._told.get(place)
        if last is not None and last[0] == said and now - last[1] < AGAIN_AFTER.total_seconds():
            return False
        self._told[place] = (said, now)
        return True

    def is_over(self, place: Hashable = "") -> None:
        """It works: the next trouble is news, whatever it says."""
        self._told.pop(place, None)
