"""A circuit breaker for one API server: no slot waits for a server that is known not to answer.

After a few requests in a row without an answer every call fails at once, except that every few
seconds one call first probes the API server with a request for its version. The probe is never a
caller's write, so a probe that hangs has no effect.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.errors import KubeError, Unreachable

log = structlog.get_logger()

FAILURES: Final = 3
"""Requests in a row without an answer after which the breaker opens."""
PROBE_EVERY: Final = timedelta(seconds=5)


@contextmanager
def name_cluster_in_errors(cluster: str) -> Generator[None]:
    """Put the cluster's name into `Unreachable`, so that its breaker counts the error (rule Q9)."""
    try:
        yield
    except Unreachable as e:
        e.cluster = e.cluster or cluster
        raise


class ApiBreaker:
    """The circuit breaker of one process for a cluster's API server.

    Args:
        cluster: its name.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._failures = 0
        self._last = Unreachable(0, "Unreachable", "")
        self._next_probe = 0.0
        """In `time.monotonic()`; only meaningful while the breaker is open."""

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return self._failures >= FAILURES

    async def admit(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Let a request pass or refuse it; while the breaker is open, one at a time probes first.

        Args:
            probe: sends the API server a harmless request with a short timeout.

        Raises:
            Unreachable: the cluster does not answer; nothing was sent.
        """
        if not self.is_open:
            return
        now = time.monotonic()
        if now < self._next_probe:
            wait = self._next_probe - now
            raise Unreachable(
                0,
                self._last.reason,
                f"cluster {self._cluster!r} does not answer ({self._last.message}); the next"
                f" attempt is in {wait:.1f} s at the latest",
            )
        self._next_probe = now + PROBE_EVERY.total_seconds()
        try:
            await probe()
        except Unreachable as e:
            self._last = e
            raise
        except KubeError:
            pass  # a refusal is an answer too
        self.record_success()

    def record_success(self) -> None:
        """Close the breaker: the API server has answered, whatever it said."""
        if self.is_open:
            log.info("cluster_reachable_again", cluster=self._cluster)
        self._failures = 0

    def record_failure(self, error: Unreachable) -> None:
        """Count a request without an answer."""
        self._failures += 1
        if self._failures == FAILURES:
            self._last = error
            self._next_probe = time.monotonic() + PROBE_EVERY.total_seconds()
            log.warning("cluster_unreachable", cluster=self._cluster, error=str(error))
