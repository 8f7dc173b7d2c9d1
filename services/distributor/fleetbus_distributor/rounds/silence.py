"""Decides which clusters of a round are not worth waiting for (rule D11).

A cluster that hangs would hold the slot of its round for as long as its requests may take. What
must not happen is that a busy machine takes its own delay for the silence of a cluster: as long as
any cluster of the round answers, or our own timers are late, nobody is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

SILENT_FOR: Final = timedelta(seconds=1)
"""Of a cluster that alone delays its round."""
_SILENT_ALONE: Final = timedelta(seconds=5)
"""Of clusters while no other one of their round has answered either."""
_LOOK: Final = timedelta(milliseconds=250)


class SilenceWatch:
    """Watches the clusters of one round from its start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_late = False

    async def pause(self) -> None:
        """Wait until it is time to look."""
        planned = time.monotonic() + _LOOK.total_seconds()
        await asyncio.sleep(_LOOK.total_seconds())
        self._is_late = time.monotonic() - planned > _LOOK.total_seconds()

    def silent(
        self, answered: Mapping[str, float], pending: Sequence[str], hanging: Collection[str]
    ) -> list[str]:
        """List the clusters to give up.

        Args:
            answered: when each cluster of the round last sent anything.
            pending: the clusters that the round waits for.
            hanging: those of them that other rounds have found to hang.
        """
        now = time.monotonic()
        silent = [name for name in pending if answered[name] < self._began]
        if self._is_late or now - self._began < SILENT_FOR.total_seconds():
            return []
        others = [at for at in answered.values() if self._began <= at <= now]
        if not others:
            is_long = now - self._began >= _SILENT_ALONE.total_seconds()
            return silent if is_long else [name for name in silent if name in hanging]
        is_quiet = max(others) < now - 2 * _LOOK.total_seconds()
        return silent if is_quiet and len(silent) == len(pending) else []
