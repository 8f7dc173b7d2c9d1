"""Waits for something as long as it makes progress."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_AT_MOST: Final = 10
"""Times the patience: what changes for ever without an end is no progress."""


class Patience:
    """The patience with something that shows signs of progress.

    A loaded machine is slow, so a fixed time is too short there and too long for what hangs.

    Args:
        still: how long nothing may change.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, still: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._still = still.total_seconds()
        self._now = now
        self._began = self._moved_at = now()
        self._sign: Hashable = None

    def is_over(self, sign: Hashable) -> bool:
        """Whether to give up; any other sign than the last one is progress."""
        now = self._now()
        if sign != self._sign:
            self._sign, self._moved_at = sign, now
        is_endless = now - self._began > _AT_MOST * self._still
        return is_endless or now - self._moved_at > self._still

    @property
    def waited(self) -> str:
        """For how long nothing has changed, and for how long it was waited in all."""
        now = self._now()
        still, total = now - self._moved_at, now - self._began
        return f"nothing has changed for {still:.0f} s, after {total:.0f} s in all"
