"""A cluster that does not answer is not asked again at once: no slot waits for it.

After a few requests in a row without an answer every call fails at once, but one every few seconds
first asks the API server for its version. That question is never somebody's write, so that an
unlucky one changes nothing.
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
"""So many requests in a row without any answer."""
PROBE_EVERY: Final = timedelta(seconds=5)


@contextmanager
def naming(cluster: str) -> Generator[None]:
    """Whoever does not answer is named, so that its breakers count it (rule Q9)."""
    try:
        yield
    except Unreachable as e:
        e.cluster = e.cluster or cluster
        raise


class Breaker:
    """What one process knows of whether a cluster's API server answers.

    Args:
        cluster: its name.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._failures = 0
        self._reason = ""
        self._next_probe = 0.0
        """In `time.monotonic()`; it means something while there are too many failures."""

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return self._failures >= FAILURES

    async def admit(self, knock: Callable[[], Awaitable[object]]) -> None:
        """Let a request pass, or refuse it; one of those that come while it is open knocks first.

        Args:
            knock: asks the API server something harmless, for no longer than a probe may take.

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
                "Unreachable",
                f"cluster {self._cluster!r} does not answer ({self._reason}); it is tried again "
                f"in {wait:.1f} s at the latest",
            )
        self._next_probe = now + PROBE_EVERY.total_seconds()
        try:
            await knock()
        except Unreachable as e:
            self._reason = e.message
            raise
        except KubeError:
            pass  # a refusal is an answer
        self.answered()

    def answered(self) -> None:
        """The API server has said something, whatever it was."""
        if self.is_open:
            log.info("cluster_answers_again", cluster=self._cluster)
        self._failures = 0

    def failed(self, error: Unreachable) -> None:
        """A request had no answer."""
        self._failures += 1
        if self._failures == FAILURES:
            self._reason = error.message
            self._next_probe = time.monotonic() + PROBE_EVERY.total_seconds()
            log.warning("cluster_does_not_answer", cluster=self._cluster, error=str(error))
