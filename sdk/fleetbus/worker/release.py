"""Ends leases: what a run leaves behind is written first, then its lease ends (rule Q12).

All leases that are waiting end in one call, together with requests that are added if that happens
soon: on its own the end of a lease costs as much as the rest of its run. Until the store has
confirmed that, the heartbeat keeps them: a slow store must not make a living owner look dead, or
its request would run twice (rule Q5).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from fleetbus.intake.recorded_queue import Ended
from fleetbus.process.log_once import LogOnce
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Add, Lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fleetbus.intake.last_runs import LastRun
    from fleetbus.reconcile import Request
    from fleetbus.run.current import Run
    from fleetbus.workqueue.heartbeat import Heartbeat
    from fleetbus.workqueue.queue import Queue

log = structlog.get_logger()

END_WITHIN: Final = timedelta(milliseconds=25)
"""Time that a lease waits for requests to be added. Delays the next run of the request by at most
this."""
_PAUSE: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended, and what is to be stored of it."""

    lease: Lease
    again: bool
    """It was stopped in the middle: the request goes back to the queue."""
    has_written: bool = False
    """Its note is worth more than its place in the queue (rule R5)."""
    note: bytes = b""
    """For the next run of this request."""
    success: Run | None = None
    """The run itself, if it succeeded."""
    last_run: tuple[Request, LastRun] | None = None
    """Result of the run, for `fleetbus explain`; None if it was stopped."""


class Releases:
    """Ends the leases of one controller in this process.

    Args:
        controller: its name.
        queue: whose leases they are.
        heartbeat: keeps them until they have ended.
        end: ends leases, and stores what their runs have left.
        until_add: see `RecordedQueue.until_add`.
    """

    def __init__(
        self,
        *,
        controller: str,
        queue: Queue,
        heartbeat: Heartbeat,
        end: Callable[[Ended], Awaitable[list[Lease]]],
        until_add: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        self._controller = controller
        self._queue = queue
        self._heartbeat = heartbeat
        self._end_leases = end
        self._until_add = until_add
        self._finished: asyncio.Queue[Finished] = asyncio.Queue()
        self._log_once = LogOnce()

    def put(self, finished: Finished) -> None:
        """End the lease of a run soon."""
        self._heartbeat.outlive(finished.lease)
        self._finished.put_nowait(finished)

    async def run(self) -> None:
        """End leases until cancelled; all that are waiting in one call."""
        while True:
            first = await self._finished.get()
            # What a run has written comes back as a change that wakes its request again.
            if self._until_add and not (first.has_written or first.again):
                await self._until_add(within=END_WITHIN)
            finished = [first]
            while not self._finished.empty():
                finished.append(self._finished.get_nowait())
            await self._end(finished)
            for _ in finished:
                self._finished.task_done()

    async def emptied(self, *, within: timedelta) -> None:
        """Wait until `run` has ended all leases, but no longer than `within`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._finished.join()

    async def end_rest(self) -> None:
        """Try once to end the leases that `run` has not started with.

        If the queue is away, the reaper of another process recovers them.
        """
        finished: list[Finished] = []
        while not self._finished.empty():
            finished.append(self._finished.get_nowait())
        if finished:
            with contextlib.suppress(QueueUnavailableError):
                await self._end_once(finished)

    async def _end(self, finished: Sequence[Finished]) -> None:
        while True:
            try:
                await self._end_once(finished)
            except QueueUnavailableError as e:
                if self._log_once.should_log(str(e)):
                    log.warning("queue_unavailable", controller=self._controller, error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
            else:
                self._log_once.reset()
                return

    async def _end_once(self, finished: Sequence[Finished]) -> None:
        lost: list[Lease] = []
        if again := [f.lease for f in finished if f.again and not f.has_written]:
            lost += await self._queue.give_back(again)
        if anew := [f.lease for f in finished if f.again and f.has_written]:
            await self._queue.add(
                [
                    Add(
                        lease.request,
                        lease.priority,
                        lease.trigger,
                        lease.trace,
                        lease.charged_cluster,
                    )
                    for lease in anew
                ]
            )
        ended = [f.lease for f in finished if f.has_written or not f.again]
        notes = {f.lease.request: f.note for f in finished if f.note}
        successes = [f.success for f in finished if f.success]
        last_runs = [f.last_run for f in finished if f.last_run]
        if ended or successes or last_runs:
            lost += await self._end_leases(Ended(ended, notes, successes, last_runs))
        self._heartbeat.drop(f.lease for f in finished)
        for lease in lost:
            log.warning("lease_lost", request=str(lease.request))
