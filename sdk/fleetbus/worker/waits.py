"""The line about a run that comes again because something was not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.errors import NotSynced
from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()

PATIENCE: Final = timedelta(seconds=5)
"""A watcher that starts tells of one resource after the other: until then it may still come."""


class Waits:
    """Tells of such runs: as a matter of course, but for what will most likely never be there.

    Args:
        clock: seconds, that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unwatched = LogOnce(clock=clock)
        self._since: dict[str, float] = {}

    def tell(
        self,
        error: BaseException,
        delay: timedelta,
        *,
        reason: str,
        at: dict[str, str],
        failures: int,
    ) -> None:
        """Log it; of each resource that no cluster has a warning now and then.

        Args:
            error: what the run ended with.
            delay: until the next one.
            reason: what may be shown of the error.
            at: where in the user's code it was, if known.
            failures: for how many the line stands, see `FailureLog.count`.
        """
        told: dict[str, Any] = {"reason": reason, "retry_in_seconds": delay.total_seconds(), **at}
        if failures > 1:
            told["failures"] = failures
        log_one = log.info if failures else log.debug
        unwatched = error.unwatched if isinstance(error, NotSynced) else ""
        if not isinstance(error, NotSynced) or not unwatched:
            log_one("reconcile_waits", **told)
            return
        near = {"do_you_mean": error.do_you_mean} if error.do_you_mean else {}
        say = log.warning if self._is_news(unwatched) else log_one
        say("reconcile_waits", resource=unwatched, **near, **told)

    def _is_news(self, resource: str) -> bool:
        now = self._clock()
        lasted = now - self._since.setdefault(resource, now)
        return lasted >= PATIENCE.total_seconds() and self._unwatched.should_log(key=resource)
