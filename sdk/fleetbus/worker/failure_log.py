"""Logs the first failure of a request, and repeats every 30 s as one line with a count.

Back-off begins with a few milliseconds: a request that keeps failing would fill a screen before
anybody has read what is wrong with it.
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

from fleetbus.errors import FleetbusError, NotSynced
from fleetbus.process.error_text import describe, render, user_place
from fleetbus.process.log_once import REPEAT_AFTER, LogOnce
from fleetbus.reconcile import Request
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Lease, Queue

log = structlog.get_logger()

_MOST: Final = 10_000
PATIENCE: Final = timedelta(seconds=5)
"""A watcher that starts reports one resource after the other: until then it may still come."""


@dataclass(slots=True)
class _Repeated:
    kind: tuple[str, str]
    logged_at: float
    unlogged: int = 0


class FailureLog:
    """Logs the failures of one controller in this process.

    Args:
        is_quiet: leave the texts of errors out: they may quote a Secret.
        clock: monotonic seconds.
        most: how many requests are remembered, the latest to fail; a failure of any other is a
            first one.
    """

    def __init__(
        self, *, is_quiet: bool, clock: Callable[[], float] = time.monotonic, most: int = _MOST
    ) -> None:
        self._most = most
        self._is_quiet = is_quiet
        self._clock = clock
        self._failing: OrderedDict[Request, _Repeated] = OrderedDict()
        self._unwatched = LogOnce(clock=clock)
        # One mistake makes many requests fail in the same line: one of them has the traceback.
        self._traced = LogOnce(clock=clock)
        self._unwatched_since: dict[str, float] = {}

    def log(
        self,
        request: Request,
        error: BaseException,
        *,
        text: str = "",
        retry_in: timedelta | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Log a failure that is new, with the traceback of what nobody expected, or a count.

        Args:
            request: what failed.
            error: what its run ended with.
            text: instead of the error's own.
            retry_in: when it is tried again.
            timeout: the run's time limit, if that is what ended it.
        """
        event = "reconcile_failed" if timeout is None else "reconcile_timed_out"
        fields: dict[str, Any] = {}
        if retry_in is not None:
            fields["retry_in_seconds"] = retry_in.total_seconds()
        if timeout is not None:
            fields["timeout_seconds"] = timeout.total_seconds()
        else:
            fields["error"] = text or describe(error, is_quiet=self._is_quiet)
        failures = self.count(request, error)
        is_expected = timeout is not None or isinstance(
            error, FleetbusError | asyncio.CancelledError
        )
        if not failures:
            log.debug(event, **fields)
        elif failures > 1:
            log.error(event, failures=failures, **fields, **place_of(error))
        elif is_expected or not self._traced.should_log(key=_kind_of(error)):
            log.error(event, **fields, **place_of(error))
        else:
            log.error(event, exception=render(error, is_quiet=self._is_quiet), **fields)

    def log_waiting(self, request: Request, error: BaseException, *, retry_in: timedelta) -> None:
        """Log a run that is retried because something is not there yet.

        That is expected, but a resource that stays unwatched is most likely misspelt: it is a
        warning, repeated while it lasts.
        """
        fields: dict[str, Any] = {
            "reason": describe(error, is_quiet=self._is_quiet),
            "retry_in_seconds": retry_in.total_seconds(),
            **place_of(error),
        }
        failures = self.count(request, error)
        if failures > 1:
            fields["failures"] = failures
        write = log.info if failures else log.debug
        if isinstance(error, NotSynced) and error.unwatched:
            fields["resource"] = error.unwatched
            if error.did_you_mean:
                fields["did_you_mean"] = error.did_you_mean
            if self._stays_unwatched(error.unwatched):
                write = log.warning
        write("reconcile_waits", **fields)

    def _stays_unwatched(self, resource: str) -> bool:
        now = self._clock()
        lasted = now - self._unwatched_since.setdefault(resource, now)
        return lasted >= PATIENCE.total_seconds() and self._unwatched.should_log(key=resource)

    def recover(self, lease: Lease) -> None:
        """Log that a request no longer fails, unless every failure had a line."""
        failure = self._failing.pop(lease.request, None)
        if failure is not None and failure.unlogged:
            log.info("reconcile_recovered", failures=lease.attempt)

    def count(self, request: Request, error: BaseException) -> int:
        """Count a failure: how many a line about it stands for; 0 for no line.

        1 is a new failure: the first one, or another error than last time.
        """
        # Not by its text, in which a time or a number may change.
        kind, now = _kind_of(error), self._clock()
        failure = self._failing.get(request)
        if failure is None or failure.kind != kind:
            self._failing[request] = _Repeated(kind, now)
            self._failing.move_to_end(request)
            if len(self._failing) > self._most:
                self._failing.popitem(last=False)
            return 1
        failure.unlogged += 1
        if now - failure.logged_at < REPEAT_AFTER.total_seconds():
            return 0
        count, failure.logged_at, failure.unlogged = failure.unlogged, now, 0
        return count


def _kind_of(error: BaseException) -> tuple[str, str]:
    return type(error).__qualname__, user_place(error)


async def warn_of_failing_requests(queue: Queue, controller: str) -> None:
    """Warn at the start: what failed before may wait for a quarter of an hour, fixed or not."""
    try:
        stats = await queue.stats()
    except QueueUnavailableError:
        return  # the first take logs it
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
    """The field that names the line of the user's code, for a log line without a traceback."""
    place = user_place(error)
    return {"at": place} if place else {}
