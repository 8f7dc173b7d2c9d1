"""The worker ladder: run → one turn → one item → user code.

One process works on up to `concurrency` requests of a controller at a time. The queue's contract:
`done` releases a lease under its fence; a request that was marked dirty meanwhile is handed out
again; one that is neither done nor requeued (the process died) is recovered by the reaper.
A heartbeat thread keeps the leases alive, so that a blocked event loop does not make a second
owner (rule Q5); when a lease is lost all the same, its handler is cancelled (rule R4).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.errors import (
    ClusterNotFound,
    Conflict,
    LeaseLost,
    NotAccepted,
    NotEngaged,
    NotSynced,
    SnapshotBehind,
)
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.last_runs import RunEnds
from fleetbus.intake.record import Record
from fleetbus.process import metrics
from fleetbus.process.cancellation import is_stop
from fleetbus.process.error_text import describe, render
from fleetbus.process.log_once import LogOnce
from fleetbus.reconcile import Request, Result, TerminalError
from fleetbus.run.awaited import require_awaited
from fleetbus.run.current import Run, running
from fleetbus.worker import tracing
from fleetbus.worker.failure_log import FailureLog, place_of, warn_of_failing_requests
from fleetbus.worker.queue_metrics import QueueGauges
from fleetbus.worker.release import Finished, Releases
from fleetbus.worker.slots import Slots, is_outage
from fleetbus.worker.waits import Waits
from fleetbus.workqueue.errors import LeaseLostError, QueueUnavailableError
from fleetbus.workqueue.heartbeat import Heartbeat
from fleetbus.workqueue.queue import LONGEST_DELAY, Lease, Queue, decode_trigger

log = structlog.get_logger()

_TAKE_WAIT: Final = timedelta(seconds=1)
_FIRST_PAUSE: Final = timedelta(milliseconds=100)
_PAUSE: Final = timedelta(seconds=1)
"""Between two looks at a queue that is away; it begins with the first one and doubles."""
_RECORD_PAUSE: Final = timedelta(milliseconds=100)
_REAP_EVERY: Final = timedelta(seconds=1)
"""A quarter of a shorter lease: after half of one without a call nothing is reaped (rule Q6)."""
_GRACE: Final = timedelta(seconds=30)
"""After its timeout a handler has so long to return; then the process ends (rules Q5, R7)."""
_LAG_PAUSE: Final = timedelta(milliseconds=500)
"""So long a slot waits for a snapshot that is older than what it is to look at (rule P10)."""
_RELEASE_WITHIN: Final = timedelta(seconds=2)
"""How long a stop waits for the store to take back the leases of what has ended."""
_DRAIN: Final = timedelta(seconds=10)
"""How long running reconciles may go on after the process was told to stop."""
_ANSWERS: Final = "None or a Result"
_SUCCESSES: Final = ("done", "requeued")
T = TypeVar("T")
Ended: TypeAlias = Callable[[Lease, str, BaseException | None], None]
"""Told of each run that is over: its lease, its outcome as in the metric, what it raised."""


class Worker:
    """All slots of one controller in this process.

    Args:
        controller: whose requests; it must be whole.
        queue: where they come from.
        make_heartbeat: from what to call for a lost lease to the thread that keeps leases.
        fleet: handed to the reconcile function.
        drain: how long running reconciles may go on after the process was told to stop.
        record: what the controller has seen; without one no request is marked as left, and
            nothing is proved to be reconciled.
    """

    def __init__(
        self,
        *,
        controller: Controller,
        queue: Queue,
        make_heartbeat: Callable[[Callable[[Lease], None]], Heartbeat],
        fleet: Fleet,
        drain: timedelta = _DRAIN,
        record: Record | None = None,
    ) -> None:
        self._controller = controller
        self._reconcile = controller.function()
        self._ends = RunEnds(controller)
        self._is_quiet = controller.handles_secrets
        self._own = controller.own_resource
        self._drain_within = drain
        self._seen = record
        self._queue = queue
        self._heartbeat = make_heartbeat(self._stop_handler)
        self._fleet = fleet
        self._free = asyncio.Semaphore(controller.concurrency)
        self._slots = Slots(controller.concurrency, controller.max_per_cluster)
        self._gauges = QueueGauges(controller.name)
        self._running: dict[tuple[Request, str], asyncio.Task[None]] = {}
        self._lost: set[tuple[Request, str]] = set()
        self._finished: dict[tuple[Request, str], Finished] = {}
        """Until their tasks are over, a moment later."""
        self._releases = Releases(
            controller=controller.name, queue=queue, heartbeat=self._heartbeat, record=record
        )
        self._is_stopping = False
        self._pause = _FIRST_PAUSE
        self._log_once = LogOnce()
        self._waits = Waits()
        self._failures = FailureLog(is_quiet=controller.handles_secrets)
        self._turn: Callable[[], None] = lambda: None
        self._before: Callable[[], Awaitable[None]] = _at_once
        self._ended: Ended = lambda _lease, _outcome, _error: None

    def on_turn(self, beat: Callable[[], None]) -> None:
        """Call `beat` at each turn of the loop, for a liveness check."""
        self._turn = beat

    def wait_before(self, before: Callable[[], Awaitable[None]]) -> None:
        """Await `before` each time before requests are taken: while it waits, none are."""
        self._before = before

    def on_end(self, ended: Ended) -> None:
        """Call `ended` when a run is over, before its lease is; for tests of controllers."""
        self._ended = ended

    async def run(self) -> None:
        """Work until cancelled; running reconciles then get a while to finish.

        Raises:
            BaseExceptionGroup: a loop beside the work failed; the running ones end as above.
        """
        self._heartbeat.start()
        self._share_slots()
        await warn_of_failing_requests(self._queue, self._controller.name)
        try:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(self._releases.run(), name="end-leases"),
                    group.create_task(self._reap(), name="reap-leases"),
                ]
                try:
                    await self._take_until_stopped()
                finally:
                    # Leases still end meanwhile, so keys are free as soon as their run has ended.
                    await self._drain()
                    # Not cut off in the middle: the store may carry out a cut call any time later.
                    await self._releases.emptied(within=_RELEASE_WITHIN)
                    for task in beside:
                        task.cancel()
        finally:
            try:
                await self._releases.end_rest()
            finally:
                await self._heartbeat.aclose()

    async def _take_until_stopped(self) -> None:
        while True:
            await self._work_once()

    async def _work_once(self) -> None:
        self._turn()
        await self._before()
        await self._free.acquire()  # wait for one slot, then take for all that are free
        self._free.release()
        free = self._controller.concurrency - len(self._running)
        try:
            slots = self._slots
            leases = await self._queue.take(
                free, wait=_TAKE_WAIT, room=slots.room, cap=slots.cap, probes=slots.probes
            )
        except QueueUnavailableError as e:
            if self._log_once.should_log(str(e)):
                log.warning("queue_unavailable", controller=self._controller.name, error=str(e))
            await asyncio.sleep(self._pause.total_seconds())
            self._pause = min(2 * self._pause, _PAUSE)
            return
        self._pause = _FIRST_PAUSE
        self._log_once.reset()
        for lease in leases:
            if lease.deadline > time.monotonic() + self._heartbeat.margin:
                await self._start(lease)
            else:  # the loop stood still since: it could write nothing, or is another one's by now
                self._releases.put(Finished(lease, again=True))

    def _share_slots(self) -> None:
        if self._fleet.is_known:
            self._slots.share(len(self._fleet.clusters()))

    async def _start(self, lease: Lease) -> None:
        await self._free.acquire()
        self._slots.take(lease)
        self._heartbeat.hold([lease], at_most=self._controller.timeout + _GRACE)
        task = asyncio.create_task(self._work(lease), name=f"reconcile {lease.request}")
        key = (lease.request, lease.fence)
        self._running[key] = task
        task.add_done_callback(lambda _: self._settled(lease))

    def _settled(self, lease: Lease) -> None:
        key = (lease.request, lease.fence)
        # A task that was cancelled before its first step has left nothing.
        finished = self._finished.pop(key, None) or Finished(lease, again=True)
        self._releases.put(finished)
        del self._running[key]
        self._lost.discard(key)
        self._slots.free(lease, is_success=finished.success is not None)
        self._free.release()

    def _stop_handler(self, lease: Lease) -> None:
        """Another worker may have the key from now on: stop what still runs for it (R4)."""
        key = (lease.request, lease.fence)
        if task := self._running.get(key):
            self._lost.add(key)
            task.cancel("lease lost")

    async def _work(self, lease: Lease) -> None:
        run_id = uuid.uuid4().hex[:12]
        structlog.contextvars.bind_contextvars(
            controller=self._controller.name,
            cluster=lease.request.cluster,
            namespace=lease.request.namespace,
            name=lease.request.name,
            attempt=lease.attempt + 1,
            reconcile_id=run_id,
        )
        waited = (datetime.now(UTC) - lease.enqueued_at).total_seconds()
        metrics.QUEUE_WAIT_SECONDS.labels(self._controller.name).observe(max(0.0, waited))
        outcome, again, began = "", True, time.time()  # what holds if we are stopped
        run = self._run_of(lease)
        with running(run), tracing.reconciling(lease, run_id):
            try:
                outcome, again = await self._try(lease, run)
            except asyncio.CancelledError:
                outcome = "lost" if (lease.request, lease.fence) in self._lost else ""
                raise
            finally:
                tracing.note_outcome(outcome or "stopped")
                self._note_end(lease, run, outcome, again=again, began=began)

    def _note_end(self, lease: Lease, run: Run, outcome: str, *, again: bool, began: float) -> None:
        success = run if outcome in _SUCCESSES else None
        end = self._ends.describe(lease, outcome, run.error, began) if outcome else None
        self._finished[lease.request, lease.fence] = Finished(
            lease, again, run.has_written, run.note(), success=success, end=end
        )
        if outcome:
            self._count(lease, outcome)
            self._ended(lease, outcome, run.error)

    async def _try(self, lease: Lease, run: Run) -> tuple[str, bool]:
        """Run once; the outcome, and whether the request goes back to where it was."""
        try:
            return await self._handle(lease, run), False
        except SnapshotBehind as e:
            # Given back with its trigger, and at once: nothing failed but the store (P10).
            await self._tell_of_lag(e)
            return "retried", True
        except LeaseLost as e:
            # It may only be unconfirmed; given back, the request is not lost if it is still ours.
            log.warning("lease_lost", reason=str(e))
            return "lost", True
        except LeaseLostError:
            log.warning("lease_lost")
            return "lost", False
        except asyncio.CancelledError as e:
            if self._is_stopping or (lease.request, lease.fence) in self._lost:
                raise
            # We did not stop it: the user's code let the cancellation of a task of its own out.
            # Handed back as it is, the request would run again at once and for ever.
            self._failures.log(lease.request, e, said="it let a cancellation out")
            return await self._count_failure(lease)
        except Exception as e:  # noqa: BLE001 -- ours, or what is stored is broken: not at once again
            run.error = e
            log.error("run_failed", exception=render(e, is_quiet=self._is_quiet))  # noqa: TRY400 -- bounded
            return await self._count_failure(lease)

    def _run_of(self, lease: Lease) -> Run:
        run = Run(
            lease.request,
            trigger=decode_trigger(lease.trigger),
            own=self._own,
            holds=lambda: self._heartbeat.vouches_for(lease),
            trace_write=tracing.writing,
        )
        run.recall(lease.note)
        return run

    async def _tell_of_lag(self, error: SnapshotBehind) -> None:
        name = self._controller.name
        metrics.SNAPSHOT_BEHIND.labels(name).inc()
        pause = _LAG_PAUSE.total_seconds()
        log.error("snapshot_behind", reason=str(error), retry_in_seconds=pause)
        await asyncio.sleep(pause)

    async def _marked(self, request: Request) -> Request:
        """The request as the function gets it: it may have to know that its object left (P8)."""
        seen = self._seen
        if seen is not None and await self._record(lambda: seen.has_left(request)):
            return replace(request, left=True)
        return request

    async def _count_failure(self, lease: Lease) -> tuple[str, bool]:
        try:
            await self._record(lambda: self._queue.retry(lease))
        except LeaseLostError:
            return "lost", False
        return "retried", False

    def _count(self, lease: Lease, outcome: str) -> None:
        # A request may name any cluster, an owner mark for one; only those of the fleet get series.
        cluster = lease.request.cluster
        label = cluster if self._fleet.has(cluster) else ""
        metrics.RECONCILES.labels(self._controller.name, label, outcome).inc()

    async def _handle(self, lease: Lease, run: Run) -> str:
        """Run the user's function once; every way it can end is a branch here (rule R8)."""
        started = time.perf_counter()
        limit = self._controller.timeout.total_seconds()
        timer = asyncio.timeout(limit)
        request = await self._marked(lease.request)
        run.request = request  # with what it is told
        try:
            async with timer:
                result = await self._call(request, run)
        except (SnapshotBehind, asyncio.CancelledError):
            raise
        except TerminalError as e:
            tracing.note_failure(e, is_quiet=self._is_quiet)
            log.error("reconcile_gave_up", error=self._say(e), **place_of(e))  # noqa: TRY400 -- an answer
            await self._record(lambda: self._queue.forget(lease))
            return "gave_up"
        except ClusterNotFound as e:
            if not self._fleet.has(lease.request.cluster):
                log.info("cluster_left", reason=self._say(e))
                await self._record(lambda: self._queue.forget(lease))
                return "left"
            # It asked for another cluster, which may join one day: again, and visibly.
            await self._retry_after_failure(lease, e)
            return "retried"
        except (NotAccepted, NotEngaged, NotSynced, Conflict) as e:
            # Not there yet, or someone wrote first: the next attempt reads afresh.
            delay = await self._record(lambda: self._queue.retry(lease))
            failures = self._failures.count(lease.request, e)
            self._waits.tell(e, delay, reason=self._say(e), at=place_of(e), failures=failures)
            return "retried"
        except BaseException as e:  # user code: also `sys.exit` means again
            if is_stop(e) or (isinstance(e, LeaseLost) and run.was_refused):
                raise
            await self._retry_after_failure(lease, e, timed_out=timer.expired())
            return "retried"
        finally:
            elapsed = time.perf_counter() - started
            metrics.RECONCILE_SECONDS.labels(self._controller.name).observe(elapsed)
        if run.was_refused:
            # The function took no notice, but what it wanted is not done.
            raise LeaseLost(f"a write of {lease.request} was held back")
        return await self._settle(lease, result)

    async def _call(self, request: Request, run: Run) -> Result | None:
        """The function itself; what it raises is kept, also where the time limit hides it."""
        try:
            result = await self._reconcile(request, self._fleet)
            require_awaited(run.calls)
        except BaseException as e:
            run.error = e
            raise
        return result

    async def _retry_after_failure(
        self, lease: Lease, error: BaseException, *, timed_out: bool = False
    ) -> None:
        tracing.note_failure(error, is_quiet=self._is_quiet)
        # What takes all its time may wait for its cluster, and eats the slots of others (Q9).
        is_late = timed_out and isinstance(error, TimeoutError)
        unreachable = is_late or is_outage(error, lease.request.cluster)
        delay = await self._record(lambda: self._queue.retry(lease, unreachable=unreachable))
        limit = self._controller.timeout if is_late else None
        self._failures.log(lease.request, error, retry_in=delay, timeout=limit)

    def _say(self, error: BaseException) -> str:
        return describe(error, is_quiet=self._is_quiet)

    async def _settle(self, lease: Lease, result: object) -> str:
        if isinstance(result, Result) and result.requeue_after is not None:
            delay = min(max(result.requeue_after, timedelta()), LONGEST_DELAY)
            await self._record(lambda: self._queue.requeue_after(lease, delay))
            self._failures.recover(lease)
            return "requeued"
        if result is None or isinstance(result, Result):
            if lease.attempt:
                await self._record(lambda: self._queue.forget(lease))
                self._failures.recover(lease)
            return "done"
        await self._record(lambda: self._queue.forget(lease))
        # Only its type: the value may be a Secret, or an object that fails when it is shown.
        answer = type(result).__name__
        log.error("invalid_reconcile_result", answer=answer, expected=_ANSWERS)
        return "gave_up"

    async def _record(self, call: Callable[[], Awaitable[T]]) -> T:
        """Write the outcome before the lease ends (rule Q12), however long the queue is away.

        The heartbeat goes on meanwhile; once it cannot vouch for the lease, it stops us.
        """
        while True:
            try:
                return await call()
            except QueueUnavailableError as e:
                if self._log_once.should_log(str(e), "record"):
                    log.warning("queue_unavailable", error=str(e))
                await asyncio.sleep(_RECORD_PAUSE.total_seconds())

    async def _reap(self) -> None:
        pause = min(_REAP_EVERY, self._queue.policy.lease / 4)
        while True:
            await asyncio.sleep(pause.total_seconds())
            try:
                reaped = await self._queue.reap()
                await self._measure()
            except QueueUnavailableError:
                continue  # the dispatcher logs it; the next pass comes soon
            if reaped.recovered or reaped.quarantined:
                log.warning(
                    "leases_recovered",
                    controller=self._controller.name,
                    recovered=reaped.recovered,
                    quarantined=[str(request) for request in reaped.quarantined],
                )

    async def _measure(self) -> None:
        self._share_slots()
        stats = await self._queue.stats()
        # Not before: one that left meanwhile has no series any more.
        names = [info.name for info in self._fleet.clusters()]
        self._gauges.show(stats, names)

    async def _drain(self) -> None:
        """Let running reconciles finish, then cancel them."""
        self._is_stopping = True
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=self._drain_within.total_seconds())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _at_once() -> None: ...
