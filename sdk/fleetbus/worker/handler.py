"""Runs the reconcile function for one lease and records how that ended.

The lower rungs of the worker ladder: `handle` is the one place where an exception becomes an
outcome, `_record` the one place where an outcome becomes a queue call and a log line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.errors import (
    ClusterNotFound,
    Conflict,
    LeaseLostError,
    NotAccepted,
    NotEngaged,
    NotSynced,
    SnapshotBehind,
)
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import ControllerStore
from fleetbus.process import metrics
from fleetbus.process.cancellation import is_stop
from fleetbus.process.error_text import describe, render
from fleetbus.process.log_once import LogOnce
from fleetbus.reconcile import Outcome, Result, TerminalError
from fleetbus.run.awaited import call_with_awaits
from fleetbus.run.current import Run
from fleetbus.run.time_limits import TimeLimits
from fleetbus.worker import tracing
from fleetbus.worker.failure_log import FailureLog, place_of
from fleetbus.worker.slots import is_outage
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import LONGEST_DELAY, Lease

log = structlog.get_logger()

_RETRY_PAUSE: Final = timedelta(milliseconds=100)
"""Between two attempts to record an outcome while the queue is unavailable."""
_EXPECTED: Final = "None or a Result"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Ending of a run.

    Attributes:
        outcome: what follows for the request.
        error: what the function raised; None if nothing.
        result: what it returned.
        is_timeout: the run's time limit ended it.
        is_given_back: the request returns to its place in the queue, as if it had not run.
    """

    outcome: Outcome
    error: BaseException | None = None
    result: object = None
    is_timeout: bool = False
    is_given_back: bool = False


class Handler:
    """Handles leases of one controller.

    Args:
        controller: whose function is called.
        store: where outcomes are recorded; tells whether the request's object has left.
        fleet: passed to the function.
        limits: the time limits of its runs.
        lag_pause: how long a slot waits for a snapshot that is behind (rule P10).
    """

    def __init__(
        self,
        controller: Controller,
        store: ControllerStore,
        fleet: Fleet,
        *,
        limits: TimeLimits,
        lag_pause: timedelta,
    ) -> None:
        self._controller = controller
        self._store, self._queue = store, store.queue
        self._limits = limits
        self._seconds = metrics.RECONCILE_SECONDS.labels(controller.name).observe
        self._reconcile = controller.function()
        self._is_quiet = controller.handles_secrets
        self._fleet = fleet
        self._lag_pause = lag_pause
        self._failures = FailureLog(is_quiet=self._is_quiet)
        self._log_once = LogOnce()

    async def handle(self, lease: Lease, run: Run, is_stopped: Callable[[], bool]) -> Ending:
        """Run the function once and record the outcome (rules R8, Q12).

        Args:
            lease: of the request.
            run: begins with this.
            is_stopped: whether the worker has cancelled it.

        Raises:
            asyncio.CancelledError: the worker has stopped this run; nothing is recorded.
        """
        try:
            ending = await self._call(lease, run)
            if run.used:
                note = partial(self._store.note_used, lease.request, run.used)
                await self._until_available(note)
            if lease.attempt or ending.outcome is not Outcome.DONE:
                await self._record(lease, ending)
        except LeaseLostError:
            log.warning("lease_lost")
            return Ending(outcome=Outcome.LEASE_LOST)
        except asyncio.CancelledError as e:
            if is_stopped():
                raise
            # Not ours: the function let the cancellation of a task of its own escape. Given back
            # as it is, the request would run again at once and for ever.
            self._failures.log(lease.request, e, text="it let a cancellation escape")
            return await self._count_failure(lease)
        except Exception as e:  # noqa: BLE001 -- a bug of ours, or broken data: with back-off
            run.error = e
            log.error("run_failed", exception=render(e, is_quiet=self._is_quiet))  # noqa: TRY400 -- bounded
            return await self._count_failure(lease)
        return ending

    async def _call(self, lease: Lease, run: Run) -> Ending:
        """Call the function under its time limit; what it raises or returns becomes an ending."""
        request, record = lease.request, self._store.record
        if record.may_leave and await self._until_available(lambda: record.has_left(request)):
            run.request = replace(request, left=True)  # the function may have to know that (P8)
        timer = self._limits.start()
        started = time.perf_counter()
        try:
            async with timer:
                work = self._reconcile(run.request, self._fleet)
                result = await call_with_awaits(work, run.calls)
        except BaseException as e:  # user code: `sys.exit` counts as a failure too
            is_timeout = timer.expired() and isinstance(e, TimeoutError)
            # The time limit replaces what the function raised when it was cancelled.
            run.error = e.__cause__ or e if is_timeout else e
            if isinstance(e, asyncio.CancelledError) or is_stop(e):
                raise
            has_cluster = self._fleet.has(lease.request.cluster)
            return read_error(e, run, has_cluster=has_cluster, is_timeout=is_timeout)
        finally:
            self._limits.end(timer)
            self._seconds(time.perf_counter() - started)
        return read_result(result, run)

    # --- the outcome ----------------------------------------------------------------------------

    async def _record(self, lease: Lease, ending: Ending) -> None:
        """Record an outcome: its queue call and its log line, one branch each (rule R8)."""
        match ending:
            case Ending(outcome=Outcome.DONE):
                await self._forget(lease)
                self._failures.recover(lease)
            case Ending(
                outcome=Outcome.REQUEUED, result=Result(requeue_after=timedelta() as after)
            ):
                delay = min(max(after, timedelta()), LONGEST_DELAY)
                await self._until_available(lambda: self._queue.requeue_after(lease, delay))
                self._failures.recover(lease)
            case Ending(outcome=Outcome.GAVE_UP, error=None, result=result):
                # Only its type: the value may be a Secret, or fail when it is shown.
                kind = type(result).__name__
                log.error("invalid_reconcile_result", result=kind, expected=_EXPECTED)
                await self._forget(lease)
            case Ending(outcome=Outcome.GAVE_UP, error=BaseException() as e):
                tracing.note_failure(e, is_quiet=self._is_quiet)
                log.error("reconcile_gave_up", error=self._describe(e), **place_of(e))
                await self._forget(lease)
            case Ending(outcome=Outcome.CLUSTER_LEFT, error=BaseException() as e):
                log.info("cluster_left", reason=self._describe(e))
                await self._forget(lease)
            case Ending(outcome=Outcome.LEASE_LOST):
                log.warning("lease_lost", reason=str(ending.error))
            case Ending(error=SnapshotBehind() as e):
                await self._wait_for_snapshot(e)
            case Ending(error=NotAccepted() | NotEngaged() | NotSynced() | Conflict() as e):
                # Not there yet, or someone else wrote first: the next attempt reads afresh.
                delay = await self._until_available(lambda: self._queue.retry(lease))
                self._failures.log_waiting(lease.request, e, retry_in=delay)
            case Ending(error=BaseException() as e):
                await self._retry(lease, e, is_timeout=ending.is_timeout)
            case _:
                pass  # a stopped run leaves nothing to record

    async def _wait_for_snapshot(self, error: SnapshotBehind) -> None:
        """Keep the slot for a moment: nothing failed but the store, which lags (rule P10)."""
        metrics.SNAPSHOT_BEHIND.labels(self._controller.name).inc()
        pause = self._lag_pause.total_seconds()
        log.error("snapshot_behind", reason=str(error), retry_in_seconds=pause)
        await asyncio.sleep(pause)

    async def _retry(self, lease: Lease, error: BaseException, *, is_timeout: bool) -> None:
        tracing.note_failure(error, is_quiet=self._is_quiet)
        # A run that takes all its time may wait for its cluster, and keeps slots from others (Q9).
        is_unreachable = is_timeout or is_outage(error, lease.request.cluster)
        delay = await self._until_available(
            lambda: self._queue.retry(lease, unreachable=is_unreachable)
        )
        limit = self._controller.timeout if is_timeout else None
        self._failures.log(lease.request, error, retry_in=delay, timeout=limit)

    async def _count_failure(self, lease: Lease) -> Ending:
        try:
            await self._until_available(lambda: self._queue.retry(lease))
        except LeaseLostError:
            return Ending(outcome=Outcome.LEASE_LOST)
        return Ending(outcome=Outcome.RETRIED)

    async def _forget(self, lease: Lease) -> None:
        await self._until_available(lambda: self._queue.forget(lease))

    async def _until_available(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the queue is away: outcomes come before the lease's end (Q12).

        The heartbeat goes on meanwhile; once it cannot vouch for the lease, the worker stops us.
        """
        while True:
            try:
                return await call()
            except QueueUnavailableError as e:
                if self._log_once.should_log(str(e)):
                    log.warning("queue_unavailable", error=str(e))
                await asyncio.sleep(_RETRY_PAUSE.total_seconds())

    def _describe(self, error: BaseException) -> str:
        return describe(error, is_quiet=self._is_quiet)


def read_error(error: BaseException, run: Run, *, has_cluster: bool, is_timeout: bool) -> Ending:
    """Map an error that the function raised to an ending.

    Args:
        error: any, but not the end of the run's task.
        run: in which it was raised.
        has_cluster: whether the request's cluster is in the fleet.
        is_timeout: whether the time limit raised it.
    """
    match error:
        case LeaseLostError() if run.was_refused:
            # It may only be unconfirmed; given back, the request is not lost if it is still ours.
            return Ending(outcome=Outcome.LEASE_LOST, error=error, is_given_back=True)
        case SnapshotBehind():
            # Given back with its trigger: nothing is wrong with the function (rule P10).
            return Ending(outcome=Outcome.RETRIED, error=error, is_given_back=True)
        case TerminalError():
            return Ending(outcome=Outcome.GAVE_UP, error=error)
        case ClusterNotFound() if not has_cluster:
            # Another cluster that it asked for may join one day: that is an ordinary failure.
            return Ending(outcome=Outcome.CLUSTER_LEFT, error=error)
        case _:
            return Ending(outcome=Outcome.RETRIED, error=error, is_timeout=is_timeout)


def read_result(result: object, run: Run) -> Ending:
    """Map what the function returned to an ending.

    Args:
        result: whatever it is; user code may return anything.
        run: which has returned it.
    """
    if run.was_refused:
        # The function took no notice, but what it wanted to write is not written.
        error = LeaseLostError(f"a write of {run.request} was refused")
        return Ending(outcome=Outcome.LEASE_LOST, error=error, is_given_back=True)
    match result:
        case None | Result(requeue_after=None):
            return Ending(outcome=Outcome.DONE, result=result)
        case Result():
            return Ending(outcome=Outcome.REQUEUED, result=result)
        case _:
            return Ending(outcome=Outcome.GAVE_UP, result=result)
