"""Logs the failures of a key once, and what repeats now and then as one line with a count.

Back-off begins with a few milliseconds: a key that keeps failing would fill a screen before anybody
has read what is wrong with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.errors import FleetbusError
from fleetbus.process.error_text import describe, render, user_place
from fleetbus.process.log_once import REPEAT_AFTER
from fleetbus.reconcile import Request
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Lease, Queue

log = structlog.get_logger()

_MOST: Final = 10_000
"""Keys that are remembered, the ones that failed last: of others a failure is a first one again."""


@dataclass(slots=True)
class _Repeated:
    kind: tuple[str, str]
    logged_at: float
    unlogged: int = 0


class FailureLog:
    """The lines about the failures of a controller in this process.

    Args:
        is_quiet: leave the texts of errors out: they may quote a Secret.
        clock: seconds, that only grow.
    """

    def __init__(self, *, is_quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_quiet = is_quiet
        self._clock = clock
        self._keys: OrderedDict[Request, _Repeated] = OrderedDict()

    def log(
        self,
        request: Request,
        error: BaseException,
        *,
        said: str = "",
        retry_in: timedelta | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Log a failure that is new, with the traceback of what nobody expected, or a count.

        Args:
            request: what failed.
            error: what its run ended with.
            said: instead of the error's text.
            retry_in: when it is tried again.
            timeout: the run's time limit, if that is what ended it.
        """
        event = "reconcile_failed" if timeout is None else "reconcile_timed_out"
        told: dict[str, Any] = {}
        if retry_in is not None:
            told["retry_in_seconds"] = retry_in.total_seconds()
        if timeout is not None:
            told["timeout_seconds"] = timeout.total_seconds()
        else:
            told["error"] = said or describe(error, is_quiet=self._is_quiet)
        failures = self.count(request, error)
        is_expected = timeout is not None or isinstance(
            error, FleetbusError | asyncio.CancelledError
        )
        if not failures:
            log.debug(event, **told)
        elif failures > 1:
            log.error(event, failures=failures, **told, **place_of(error))
        elif is_expected:
            log.error(event, **told, **place_of(error))
        else:
            log.error(event, exception=render(error, is_quiet=self._is_quiet), **told)

    def recover(self, lease: Lease) -> None:
        """Log that it no longer fails, if not every failure had a line."""
        known = self._keys.pop(lease.request, None)
        if known is not None and known.unlogged:
            log.info("reconcile_recovered", failures=lease.attempt)

    def count(self, request: Request, error: BaseException) -> int:
        """For how many failures a line about this one stands; 0 for no line.

        1 is a failure that is new: the first one, or another error than last time.
        """
        # Not by its text, in which a time or a number may change.
        kind, now = (type(error).__qualname__, user_place(error)), self._clock()
        known = self._keys.get(request)
        if known is None or known.kind != kind:
            self._keys[request] = _Repeated(kind, now)
            self._keys.move_to_end(request)
            if len(self._keys) > _MOST:
                self._keys.popitem(last=False)
            return 1
        known.unlogged += 1
        if now - known.logged_at < REPEAT_AFTER.total_seconds():
            return 0
        count, known.logged_at, known.unlogged = known.unlogged, now, 0
        return count


async def warn_of_failing_requests(queue: Queue, controller: str) -> None:
    """At the start: what failed before may wait for a quarter of an hour, mended or not."""
    try:
        stats = await queue.stats()
    except QueueUnavailableError:
        return  # the first take tells of it
    if stats.failing or stats.quarantined:
        log.warning(
            "requests_wait_after_failures",
            controller=controller,
            failing=stats.failing,
            quarantined=stats.quarantined,
            hint=f"`fleetbus queue retry {controller}` runs them now; `fleetbus queue {controller}`"
            " lists them with their errors",
        )


def place_of(error: BaseException) -> dict[str, str]:
    """For a line without a traceback: where in the user's code, if it was there."""
    place = user_place(error)
    return {"at": place} if place else {}
