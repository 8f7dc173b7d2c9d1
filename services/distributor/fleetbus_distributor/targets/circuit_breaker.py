"""Rule D11: a cluster that lets us wait is not asked again in every round.

A refused connection costs nothing and is simply tried again. A server that accepts and never
answers costs its whole timeout, and every other change of the same MultiClusterResource would wait
behind it: after such a failure the cluster rests, then one round probes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

PROBE_AFTER: Final = timedelta(seconds=5)
"""As often as a MultiClusterResource that waits is looked at, so that a return is noticed within
10 s, also where the last try hung for the 5 s of a connect."""
_SLOW: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Rest:
    """Why a cluster is left alone, as its last failure said it."""

    reason: str
    message: str
    until: float


class Breaker:
    """Remembers, in this process only, which clusters wasted our time.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._resting: dict[str, Rest] = {}

    def resting(self, cluster: str) -> Rest | None:
        """Why the cluster is left alone right now; None when it may be asked."""
        rest = self._resting.get(cluster)
        return rest if rest is not None and rest.until > self._now() else None

    def failed(self, cluster: str, reason: str, message: str, took: timedelta) -> None:
        """Note that a cluster did not answer."""
        if took >= _SLOW:
            until = self._now() + PROBE_AFTER.total_seconds()
            self._resting[cluster] = Rest(reason, message, until)

    def answered(self, cluster: str) -> None:
        """Note that a cluster works."""
        self._resting.pop(cluster, None)
