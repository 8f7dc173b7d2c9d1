"""Skips a cluster for a moment after a slow failure (rule D11).

A refused connection costs nothing and is simply tried again. A server that accepts and never
answers costs its whole timeout, and every other change of the same MultiClusterResource would wait
for it: after such a failure the cluster cools down, then a single round probes it.

The processes share what they know through the store: `SharedCooldowns` copies it once a second, in
the background, so that no round ever waits for the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
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
    """Remembers which clusters failed slowly, and what other processes say of them.

    Args:
        now: a clock in seconds that all processes share.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._cooldowns: dict[str, Cooldown] = {}
        self.changed = asyncio.Event()
        """Set with each change that other processes do not know yet."""
        self.unpublished: dict[str, Cooldown | None] = {}
        """These changes; None for a cluster that answers again."""

    def cooldown_of(self, cluster: str) -> Cooldown | None:
        """Why the cluster is skipped right now; None if it is not, or if the caller is to probe it.

        After the cooldown one caller probes; all others go on skipping the cluster meanwhile.
        """
        cooldown = self._cooldowns.get(cluster)
        if cooldown is None or cooldown.until > self._now():
            return cooldown
        self._cooldowns[cluster] = self._from_now(cooldown.reason, cooldown.message)
        return None

    def is_open(self, cluster: str) -> bool:
        """Whether the cluster is known to fail slowly."""
        return cluster in self._cooldowns

    def record_failure(self, cluster: str, reason: str, message: str, took: timedelta) -> None:
        """Start a cooldown if a cluster took long to fail."""
        if took >= _SLOW:
            self._cooldowns[cluster] = self._from_now(reason, message)
            self._publish(cluster)

    def record_answer(self, cluster: str) -> None:
        """End the cooldown of a cluster that answered."""
        if self._cooldowns.pop(cluster, None):
            self._publish(cluster)

    def learn(self, published: Mapping[str, Cooldown]) -> None:
        """Take over what other processes say; what this one has not published yet is newer."""
        for cluster in self._cooldowns.keys() - published.keys() - self.unpublished.keys():
            del self._cooldowns[cluster]
        for cluster, cooldown in published.items():
            earlier = self._cooldowns.get(cluster)
            is_newer = earlier is None or cooldown.until > earlier.until
            if cluster not in self.unpublished and is_newer:
                self._cooldowns[cluster] = cooldown

    def _from_now(self, reason: str, message: str) -> Cooldown:
        return Cooldown(reason, message, self._now() + PROBE_AFTER.total_seconds())

    def _publish(self, cluster: str) -> None:
        self.unpublished[cluster] = self._cooldowns.get(cluster)
        self.changed.set()
