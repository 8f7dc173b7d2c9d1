"""The worker: run → one turn → one item → `Handler.handle` → user code.

One process works on up to `concurrency` requests of a controller at a time. The queue's contract:
`done` releases a lease under its fence; a request that was marked dirty meanwhile is handed out
again; one that is neither done nor requeued (the process died) is recovered by the reaper.
A heartbeat thread keeps the leases alive, so that a blocked event loop does not make a second
owner (rule Q5); when a lease is lost all the same, its run is cancelled (rule R4).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.last_runs import describe_run
from fleetbus.intake.recent_events import RecentEvents
from fleetbus.intake.record import Record
from fleetbus.intake.recorded_queue import Ended, RecordedQueue
from fleetbus.process import metrics
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus.reconcile import Outcome, Request
from fleetbus.run.current import Run, running
from fleetbus.worker import tracing
from fleetbus.worker.failure_log import warn_of_failing_requests
from fleetbus.worker.handler import LAG_PAUSE, Ending, Handler
from fleetbus.worker.reaper import Reaper
from fleetbus.worker.release import Finished, Releases
from fleetbus.worker.slots import Slots
from fleetbus.worker.unsynced import UnsyncedResources
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.heartbeat import Heartbeat
from fleetbus.workqueue.queue import Lease, Queue, decode_trigger

log = structlog.get_logger()

_TAKE_WAIT: Final = timedelta(seconds=1)
_FIRST_PAUSE: Final = timedelta(milliseconds=100)
_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""Between two attempts to take from a queue that is away; from the first pause on it doubles."""
_GRACE: Final = timedelta(seconds=30)
_RELEASE_WITHIN: Final = timedelta(seconds=2)
"""Time that a stop waits for the store to take back the leases of runs that have ended."""
_DRAIN: Final = timedelta(seconds=10)

_Key: TypeAlias = tuple[Request, str]
"""Request and fence: one lease."""
OnRunEnd: TypeAlias = Callable[[Lease, Outcome, BaseException | None], None]
"""Called for each run that has ended, before its lease does: with what the function raised."""


def _no_op(*_: object) -> None: ...


async def _at_once() -> None: ...


class Worker:
    """All slots of one controller in this process.

    Args:
        controller: whose requests; it must be whole.
        queue: where they come from.
        make_heartbeat: from what to call for a lost lease to the thread that keeps leases.
        fleet: passed to the reconcile function.
        drain: how long running reconciles may go on after the worker was cancelled.
        record: what the controller has seen; without one no request is marked as left.
        unsynced: where it is noted what runs have used and is not synced; without it nothing is.
        recorded: the queue together with the record; without one nothing is proved to be
            reconciled.
        recent: the objects of the last moment, for first reads; without one all read the snapshot.
        before_take: awaited before requests are taken: while it waits, none are.
        on_turn: called at each turn of the loop, for a liveness check.
        on_run_end: called for each run that has ended; for tests of controllers.
        grace: how long a run may take to return after its timeout; then the process ends (rules
            Q5, R7).
        lag_pause: how long a slot waits for a snapshot that is behind (rule P10).
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
        unsynced: UnsyncedResources | None = None,
        recorded: RecordedQueue | None = None,
        recent: RecentEvents | None = None,
        before_take: Callable[[], Awaitable[None]] = _at_once,
        on_turn: Callable[[], None] = _no_op,
        on_run_end: OnRunEnd = _no_op,
        grace: timedelta = _GRACE,
        lag_pause: timedelta = LAG_PAUSE,
    ) -> None:
        name = controller.name
        self._controller = controller
        self._own = controller.own_resource
        self._queue, self._fleet, self._recent = queue, fleet, recent
        self._drain_within, self._grace = drain, grace
        self._before_take, self._on_turn, self._on_run_end = before_take, on_turn, on_run_end
        self._heartbeat = make_heartbeat(self._cancel_lost)
        self._handler = Handler(
            controller=controller,
            queue=queue,
            fleet=fleet,
            record=record,
            unsynced=unsynced,
            is_stopped=lambda lease: self._is_stopping or _key(lease) in self._lost,
            lag_pause=lag_pause,
        )
        self._free = asyncio.Semaphore(controller.concurrency)
        self._slots = Slots(controller.concurrency, controller.max_per_cluster)
        self._reaper = Reaper(controller=name, queue=queue, fleet=fleet, slots=self._slots)
        self._releases = self._make_releases(recorded)
        self._running: dict[_Key, asyncio.Task[None]] = {}
        self._lost: set[_Key] = set()
        self._finished: dict[_Key, Finished] = {}
        """Runs that have ended; until their tasks are over, a moment later."""
        self._is_stopping = False
        self._pauses, self._log_once = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), LogOnce()

    # --- run --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled; running reconciles then get a while to finish.

        Raises:
            BaseExceptionGroup: a loop beside the work failed; the running ones end as above.
        """
        self._reaper.share_slots()
        async with self._keeping_leases():
            await warn_of_failing_requests(self._queue, self._controller.name)
            while True:
                await self._work_once()

    @asynccontextmanager
    async def _keeping_leases(self) -> AsyncGenerator[None]:
        """Keep, end and reap leases; at the end of the block drain what runs."""
        self._heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(self._releases.run(), name="end-leases"),
                    group.create_task(self._reaper.run(), name="reap-leases"),
                ]
                try:
                    yield
                finally:
                    await self._stop(beside)
        finally:
            try:
                await self._releases.end_rest()
            finally:
                await self._heartbeat.aclose()

    async def _stop(self, beside: Sequence[asyncio.Task[None]]) -> None:
        # Leases still end meanwhile: a request is free as soon as its run has ended.
        await self._drain()
        # Not cancelled halfway: the store may still execute a cancelled call later.
        await self._releases.emptied(within=_RELEASE_WITHIN)
        for task in beside:
            task.cancel()

    async def _drain(self) -> None:
        """Let running reconciles finish, then cancel them."""
        self._is_stopping = True
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=self._drain_within.total_seconds())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # --- one turn ---------------------------------------------------------------------------------

    async def _work_once(self) -> None:
        self._on_turn()
        await self._before_take()
        await self._free.acquire()  # wait for one slot, then take for all that are free
        self._free.release()
        free = self._controller.concurrency - len(self._running)
        try:
            slots = self._slots
            leases = await self._queue.take(
                free,
                wait=_TAKE_WAIT,
                capacity=slots.capacity,
                default_capacity=slots.default_capacity,
                probes=slots.probes,
            )
        except QueueUnavailableError as e:
            if self._log_once.should_log(str(e)):
                log.warning("queue_unavailable", controller=self._controller.name, error=str(e))
            await self._pauses.sleep()
            return
        self._pauses.reset()
        self._log_once.reset()
        for lease in leases:
            if lease.deadline > time.monotonic() + self._heartbeat.margin:
                await self._start(lease)
            else:
                # The loop stood still since: the run could write nothing, or somebody else has it.
                self._releases.put(Finished(lease, again=True))

    async def _start(self, lease: Lease) -> None:
        await self._free.acquire()
        self._slots.take(lease)
        self._heartbeat.hold([lease], at_most=self._controller.timeout + self._grace)
        task = asyncio.create_task(self._work(lease), name=f"reconcile {lease.request}")
        self._running[_key(lease)] = task
        # Not in the task itself: one that is cancelled before its first step runs nothing.
        task.add_done_callback(lambda _: self._release(lease))

    def _release(self, lease: Lease) -> None:
        key = _key(lease)
        # A task that was cancelled before its first step has left nothing.
        finished = self._finished.pop(key, None) or Finished(lease, again=True)
        self._releases.put(finished)
        del self._running[key]
        self._lost.discard(key)
        self._slots.free(lease, is_success=finished.success is not None)
        self._free.release()

    def _make_releases(self, recorded: RecordedQueue | None) -> Releases:
        return Releases(
            controller=self._controller.name,
            queue=self._queue,
            heartbeat=self._heartbeat,
            end=recorded.done if recorded else self._done,
            until_add=recorded.until_add if recorded else None,
        )

    async def _done(self, ended: Ended) -> list[Lease]:
        return await self._queue.done(ended.leases, ended.notes)

    def _cancel_lost(self, lease: Lease) -> None:
        """Another worker may have the key from now on: stop what still runs for it (R4)."""
        if task := self._running.get(_key(lease)):
            self._lost.add(_key(lease))
            task.cancel("lease lost")

    # --- one item ---------------------------------------------------------------------------------

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
        run, started, ending = self._run_of(lease), time.time(), None
        with running(run), tracing.reconciling(lease, run_id):
            try:
                ending = await self._handler.handle(lease, run)
            finally:
                self._finish(lease, run, ending or self._cut_off(lease), started)

    def _run_of(self, lease: Lease) -> Run:
        run = Run(
            lease.request,
            trigger=decode_trigger(lease.trigger),
            own=self._own,
            holds=lambda: self._heartbeat.vouches_for(lease),
            trace_write=tracing.writing,
        )
        run.recall(lease.note)
        if self._recent and run.own and run.trigger:
            run.offered = self._recent.take(run.own_ref, run.trigger)
        return run

    def _cut_off(self, lease: Lease) -> Ending:
        """The ending of a run that was cancelled: its request goes back to the queue."""
        outcome = Outcome.LEASE_LOST if _key(lease) in self._lost else Outcome.STOPPED
        return Ending(outcome=outcome, is_given_back=True)

    def _finish(self, lease: Lease, run: Run, ending: Ending, started: float) -> None:
        """Leave behind what the release of the lease writes, and count the run."""
        outcome = ending.outcome
        tracing.note_outcome(outcome)
        is_over = outcome is not Outcome.STOPPED
        self._finished[_key(lease)] = Finished(
            lease,
            again=ending.is_given_back,
            has_written=run.has_written,
            note=run.note(),
            success=run if outcome.is_success else None,
            last_run=describe_run(self._controller, lease, outcome, run.error, started)
            if is_over
            else None,
        )
        if is_over:
            # A request may name any cluster, an owner mark for one; only the fleet's get series.
            cluster = lease.request.cluster if self._fleet.has(lease.request.cluster) else ""
            metrics.RECONCILES.labels(self._controller.name, cluster, outcome).inc()
            self._on_run_end(lease, outcome, run.error)


def _key(lease: Lease) -> _Key:
    return lease.request, lease.fence
