"""The worker: run → one turn → one item → `Handler.handle` → user code.

One process works on up to `concurrency` requests of a controller at a time. The queue's contract:
`done` releases a lease under its fence; a request that was marked dirty meanwhile is handed out
again; one that is neither done nor requeued (the process died) is recovered by the reaper.
A heartbeat thread keeps the leases alive, so that a blocked event loop does not make a second
owner (rule Q5); when a lease is lost all the same, its run is cancelled (rule R4).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import ControllerStore, Finished
from fleetbus.intake.last_runs import describe_run
from fleetbus.process import metrics
from fleetbus.process.log_levels import LEVELS
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus.reconcile import Outcome
from fleetbus.run.current import Run, begin
from fleetbus.run.time_limits import TimeLimits
from fleetbus.worker import tracing
from fleetbus.worker.failure_log import warn_of_failing_requests
from fleetbus.worker.handler import Ending, Handler
from fleetbus.worker.reaper import Reaper
from fleetbus.worker.slots import Slots
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Lease, decode_trigger

log = structlog.get_logger()

_FIRST_PAUSE: Final = timedelta(milliseconds=100)
_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""Between two attempts to take from a queue that is away; from the first pause on it doubles."""
_RELEASE_WITHIN: Final = timedelta(seconds=2)
"""Time that a stop waits for the store to take back the leases of runs that have ended."""


async def _at_once() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Times that a worker waits.

    Attributes:
        drain: how long running reconciles may go on after the worker was cancelled.
        grace: how long a run may take to return after its timeout; then the process ends (rules
            Q5, R7).
        lag: how long a slot waits for a snapshot that is behind (rule P10).
    """

    drain: timedelta = timedelta(seconds=10)
    grace: timedelta = timedelta(seconds=30)
    lag: timedelta = timedelta(milliseconds=500)


@dataclass(eq=False, slots=True)
class _Running:
    """One lease in a slot.

    Attributes:
        finished: what to store of its run, once that has ended; a task that was cancelled before
            its first step leaves nothing.
    """

    lease: Lease
    task: asyncio.Task[None]
    is_lost: bool = False
    finished: Finished | None = None


class Worker:
    """All slots of one controller in this process.

    Args:
        controller: whose requests; it must be whole.
        store: where they come from, and what runs leave goes.
        fleet: passed to the reconcile function.
        before_take: awaited at each turn, before requests are taken: while it waits, none are.
        patience: how long it waits for what.
    """

    def __init__(
        self,
        controller: Controller,
        store: ControllerStore,
        fleet: Fleet,
        *,
        before_take: Callable[[], Awaitable[None]] = _at_once,
        patience: Patience = Patience(),
    ) -> None:
        self._controller, self._store, self._fleet = controller, store, fleet
        self._own = controller.own_resource
        self._before_take, self._patience = before_take, patience
        self._at_most = controller.timeout + patience.grace
        self._limits = TimeLimits(controller.timeout)
        self._handler = Handler(
            controller, store, fleet, limits=self._limits, lag_pause=patience.lag
        )
        self._slots = Slots(controller.concurrency, controller.max_per_cluster)
        self._reaper = Reaper(
            controller=controller.name, queue=store.queue, fleet=fleet, slots=self._slots
        )
        self._heartbeat = store.keep_leases(self._cancel_lost)
        self._running: dict[int, _Running] = {}
        """By the id of the lease."""
        self._room = asyncio.Event()
        self._is_stopping = False
        self._waited = metrics.QUEUE_WAIT_SECONDS.labels(controller.name).observe
        self._pauses, self._log_once = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), LogOnce()

    # --- run --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled; running reconciles then get a while to finish.

        Raises:
            BaseExceptionGroup: a loop beside the work failed; the running ones end as above.
        """
        self._reaper.share_slots()
        async with self._keeping_leases():
            await warn_of_failing_requests(self._store.queue, self._controller.name)
            while True:
                await self._work_once()

    @asynccontextmanager
    async def _keeping_leases(self) -> AsyncGenerator[None]:
        """Keep, end and reap leases; at the end of the block drain what runs."""
        self._heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(self._store.run(), name="end-leases"),
                    group.create_task(self._reaper.run(), name="reap-leases"),
                ]
                try:
                    yield
                finally:
                    await self._stop(beside)
        finally:
            self._limits.close()
            await self._heartbeat.aclose()

    async def _stop(self, beside: Sequence[asyncio.Task[None]]) -> None:
        # Leases still end meanwhile: a request is free as soon as its run has ended.
        await self._drain()
        # Not cancelled halfway: the store may still execute a cancelled call later.
        await self._store.emptied(within=_RELEASE_WITHIN)
        for task in beside:
            task.cancel()

    async def _drain(self) -> None:
        """Let running reconciles finish, then cancel them."""
        self._is_stopping = True
        running = [one.task for one in self._running.values()]
        if running:
            await asyncio.wait(running, timeout=self._patience.drain.total_seconds())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._release_ended()

    # --- one turn ---------------------------------------------------------------------------------

    async def _work_once(self) -> None:
        await self._before_take()
        self._release_ended()
        if not self._slots.vacant:
            self._room.clear()
            await self._room.wait()
        try:
            await self._store.take(self._slots, self._start)
        except QueueUnavailableError as e:
            if self._log_once.should_log(str(e)):
                log.warning("queue_unavailable", controller=self._controller.name, error=str(e))
            await self._pauses.sleep()
            return
        self._pauses.reset()
        self._log_once.reset()

    def _start(self, leases: Sequence[Lease]) -> None:
        valid_after = time.monotonic() + self._heartbeat.margin
        for lease in leases:
            if lease.deadline > valid_after:
                self._slots.take(lease)
                self._heartbeat.hold((lease,), at_most=self._at_most)
                name = f"reconcile {lease.request}"
                task = asyncio.create_task(self._work(lease), name=name)
                self._running[id(lease)] = _Running(lease, task)
            else:
                # The loop stood still since: the run could write nothing, or somebody else has it.
                self._store.finish(Finished(lease=lease, outcome=Outcome.STOPPED, again=True))

    def _release_ended(self) -> None:
        """Release what has not released itself: a task that is cancelled early runs nothing."""
        for running in [one for one in self._running.values() if one.task.done()]:
            self._release(running)

    def _release(self, running: _Running) -> None:
        lease = running.lease
        finished = running.finished or Finished(lease=lease, outcome=Outcome.STOPPED, again=True)
        del self._running[id(lease)]
        self._slots.free(lease, is_success=finished.success is not None)
        self._store.finish(finished)
        if not self._room.is_set():
            self._room.set()

    def _cancel_lost(self, lease: Lease) -> None:
        """Another worker may have the key from now on: stop what still runs for it (R4)."""
        if running := self._running.get(id(lease)):
            running.is_lost = True
            running.task.cancel("lease lost")
            # It does not release itself if it has not begun; and if no slot is free, nobody looks.
            running.task.add_done_callback(lambda _: self._release_ended())

    # --- one item ---------------------------------------------------------------------------------

    async def _work(self, lease: Lease) -> None:
        running, run_id, ending = self._running[id(lease)], os.urandom(6).hex(), None
        structlog.contextvars.bind_contextvars(
            controller=self._controller.name,
            cluster=lease.request.cluster,
            namespace=lease.request.namespace,
            name=lease.request.name,
            attempt=lease.attempt + 1,
            reconcile_id=run_id,
        )
        run, started = self._run_of(lease), time.time()
        self._waited(max(0.0, started - lease.enqueued_at.timestamp()))
        begin(run)
        with tracing.reconciling(lease, run_id) as span:
            try:
                ending = await self._handler.handle(
                    lease, run, lambda: self._is_stopping or running.is_lost
                )
            finally:
                ending = ending or _cut_off(running)
                tracing.note_outcome(span, ending.outcome)
                running.finished = self._finish(running, run, ending, started)
                self._release(running)

    def _run_of(self, lease: Lease) -> Run:
        run = Run(
            lease.request,
            trigger=decode_trigger(lease.trigger),
            own=self._own,
            holds=lambda: self._heartbeat.vouches_for(lease),
            trace_write=tracing.writing,
        )
        run.recall(lease.note)
        if run.own and run.trigger:
            run.offered = self._store.offer(run.own_ref, run.trigger)
        return run

    def _finish(self, running: _Running, run: Run, ending: Ending, started: float) -> Finished:
        """Count the run; returns what the end of its lease writes."""
        lease, outcome, last_run = running.lease, ending.outcome, None
        if outcome is not Outcome.STOPPED:
            # A request may name any cluster, an owner mark for one; only the fleet's get series.
            cluster = lease.request.cluster if self._fleet.has(lease.request.cluster) else ""
            metrics.count_reconcile(self._controller.name, cluster, outcome)
            last_run = describe_run(self._controller, lease, outcome, run.error, started)
            if LEVELS.shows_debug(self._controller.name):
                seconds = round(time.time() - started, 4)
                trigger = lease.trigger.decode(errors="replace")
                log.debug("run_ended", outcome=outcome, seconds=seconds, trigger=trigger)
        return Finished(
            lease=lease,
            outcome=outcome,
            error=run.error,
            again=ending.is_given_back,
            has_written=run.has_written,
            note=run.note(),
            success=run if outcome.is_success else None,
            last_run=last_run,
        )


def _cut_off(running: _Running) -> Ending:
    """The ending of a run that was cancelled: its request goes back to the queue."""
    outcome = Outcome.LEASE_LOST if running.is_lost else Outcome.STOPPED
    return Ending(outcome=outcome, is_given_back=True)
