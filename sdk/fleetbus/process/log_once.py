"""Logs a persistent failure once, then again every 30 s: not at each attempt."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

REPEAT_AFTER: Final = timedelta(seconds=30)


class LogOnce:
    """Decides which lines about failures that keep coming back are written.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The last line of each key and its time; never pruned, as callers have few keys.
        self._last: dict[Hashable, tuple[str, float]] = {}

    def should_log(self, text: str = "", key: Hashable = "") -> bool:
        """Whether the line is new: another text than last time, or `REPEAT_AFTER` has passed.

        Args:
            text: what would be logged.
            key: what fails, for a caller that watches several things.
        """
        now = self._clock()
        last = self._last.get(key)
        if last is not None and last[0] == text and now - last[1] < REPEAT_AFTER.total_seconds():
            return False
        self._last[key] = (text, now)
        return True

    def reset(self, key: Hashable = "") -> None:
        """It works again: the next failure is logged, whatever its text."""
        self._last.pop(key, None)
