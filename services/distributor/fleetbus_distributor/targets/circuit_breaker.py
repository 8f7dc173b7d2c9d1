"""Skips a cluster for a moment after a slow failure (rule D11).

A refused connection costs nothing and is simply tried again. A server that accepts and never
answers costs its whole timeout, and every other change of the same MultiClusterResource would wait
for it: after such a failure the cluster cools down, then one round probes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

PROBE_AFTER: Final = timedelta(seconds=5)
"""As often as a waiting MultiClusterResource is reconciled, so that a recovery is noticed within
10 s, also where the last attempt hung for the 5 s of a connect."""
_SLOW: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Why a cluster is skipped: its last failure."""

    reason: str
    message: str
    until: float


class CircuitBreaker:
    """Remembers, in this process only, which clusters failed slowly.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cooldowns: dict[str, Cooldown] = {}

    def cooldown_of(self, cluster: str) -> Cooldown | None:
        """Why the cluster is skipped right now; None if it is not."""
        cooldown = self._cooldowns.get(cluster)
        is_over = cooldown is None or cooldown.until <= self._now()
        return None if is_over else cooldown

    def record_failure(self, cluster: str, reason: str, message: str, took: timedelta) -> None:
        """Start a cooldown if a cluster took long to fail."""
        if took >= _SLOW:
            until = self._now() + PROBE_AFTER.total_seconds()
            self._cooldowns[cluster] = Cooldown(reason, message, until)

    def record_answer(self, cluster: str) -> None:
        """End the cooldown of a cluster that answered."""
        self._cooldowns.pop(cluster, None)
