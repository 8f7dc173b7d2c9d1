"""The store of a controller: load, enqueue, take, finish (rules P8, Q12).

Its queue, its record and what its runs leave change in one step. So the record is never ahead of
the queue nor behind it, a run knows what its object was like when it was enqueued, and nothing is
enqueued for a state that another process has overtaken. Who calls need not know what is sent
together: runs end in the call that enqueues next, and every call takes for whoever waits for a
lease here. On its own each of these costs as much as the rest of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from fleetbus.intake.last_runs import LastRun
from fleetbus.intake.recent_events import RecentEvents
from fleetbus.intake.record import CHUNK, Change, Record, StoredRecord
from fleetbus.intake.unsynced import Pair, UnsyncedResources
from fleetbus.process.log_once import LogOnce
from fleetbus.reconcile import Outcome, Request
from fleetbus.run.current import ObjectRef, Run, Version
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.heartbeat import Heartbeat
from fleetbus.workqueue.queue import BATCH, Add, Lease, Queue, Room, encode_trigger
from fleetbus.workqueue.scripts import NO_ENDING, Ending

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.controller.controller import Controller
    from fleetbus.snapshot.reads.reader import SnapshotReader
    from fleetbus.workqueue.redis import RedisQueue

log = structlog.get_logger()

TAKE_WAIT: Final = timedelta(seconds=1)
END_WITHIN: Final = timedelta(milliseconds=25)
"""Time that a lease waits for requests to be added. Delays the next run of the request by at most
this."""
_MOST_JOINED: Final = 100
"""Runs that end in a call that adds; a script blocks the server while it runs (rule P16)."""
_PAUSE: Final = timedelta(seconds=1)
_LAST_WITHIN: Final = timedelta(seconds=2)
"""Time for the leases that are left when the process stops; an answer may take half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that has ended, and what is to be stored of it."""

    lease: Lease
    outcome: Outcome
    error: BaseException | None = None
    """The error that the function raised."""
    again: bool = False
    """It was stopped in the middle: the request goes back to the queue."""
    has_written: bool = False
    """Its note is worth more than its place in the queue (rule R5)."""
    note: bytes = b""
    """For the next run of this request."""
    success: Run | None = None
    """The run itself, if it succeeded."""
    last_run: tuple[Request, LastRun] | None = None
    """Result of the run, for `fleetbus explain`; None if it was stopped."""

    @property
    def own_read(self) -> Version | None:
        """The version of its own object that a run has read that succeeded."""
        return self.success.reads.get(self.success.own_ref) if self.success else None


class ControllerStore(Protocol):
    """The store of one controller in this process.

    Every call may be repeated after `QueueUnavailableError`.

    Attributes:
        queue: for outcomes of runs, and for whoever adds requests of no object.
        record: what the controller has seen, to be read.
    """

    queue: Queue
    record: Record

    async def load(self, refs: Iterable[ObjectRef]) -> dict[ObjectRef, StoredRecord]:
        """Load what was seen of these objects; one that never was has an empty record.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        ...

    async def enqueue(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """Add requests, and store what was seen of the objects that cause them.

        Args:
            adds: each with the object that causes it, if one does.
            changes: to the record.

        Returns:
            The objects that another process has written first: nothing was stored of them, and
            their own requests were not added. They are to be evaluated again.
        """
        ...

    async def take(self, room: Room, start: Callable[[Sequence[Lease]], None]) -> None:
        """Lease what is ready as far as there is room; returns a second later, or once it is full.

        Args:
            room: read at every attempt.
            start: called with leases as soon as they are there.
        """
        ...

    def finish(self, finished: Finished) -> None:
        """End the lease of a run soon; before that what it leaves is stored."""
        ...

    async def note_used(self, request: Request, used: Iterable[Pair]) -> None:
        """Note the resources that a run has used, as far as they are not synced (rule P18)."""
        ...

    def offer(self, ref: ObjectRef, version: Version) -> bytes:
        """The JSON of an object at this version, if it has just been enqueued here; else empty."""
        ...

    def keep_leases(self, on_lost: Callable[[Lease], None]) -> Heartbeat:
        """The heartbeat that keeps leases until they have ended; to be started, and closed."""
        ...

    async def run(self) -> None:
        """End the leases of finished runs until cancelled; the last ones then."""
        ...

    async def emptied(self, *, within: timedelta) -> None:
        """Wait until all leases of finished runs have ended, but no longer than `within`."""
        ...


class RedisStore:
    """Implements `ControllerStore` with one script call per 200 objects.

    Until the store has confirmed that a lease has ended, the heartbeat keeps it: a slow store must
    not make a living owner look dead, or its request would run twice (rule Q5).

    Args:
        controller: whose; it must be whole.
        queue: of the controller.
        redis: where the queue is.
        reader: tells what is synced.
        make_heartbeat: from what to call for a lost lease to what keeps leases.
    """

    def __init__(
        self,
        controller: Controller,
        queue: RedisQueue,
        *,
        redis: Redis,
        reader: SnapshotReader,
        make_heartbeat: Callable[[Callable[[Lease], None]], Heartbeat],
    ) -> None:
        self._name = controller.name
        self.queue: Queue = queue
        self._queue = queue
        self.record = Record(redis, controller)
        self.load = self.record.load
        self.recent = RecentEvents(controller.own_resource)
        self.offer = self.recent.take
        self.unsynced = UnsyncedResources(controller, redis=redis, reader=reader)
        self.note_used = self.unsynced.note
        self._make_heartbeat = make_heartbeat
        self._heartbeat: Heartbeat | None = None
        self._finished: deque[Finished] = deque()
        self._waits_since = 0.0
        """When the first of them has finished."""
        self._is_timed = False
        self._due = asyncio.Event()
        self._ending = 0
        """Runs whose end was sent, and is not confirmed yet."""
        self._emptied = asyncio.Event()
        self._log_once = LogOnce()

    # --- enqueue ----------------------------------------------------------------------------------

    async def enqueue(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """See `ControllerStore.enqueue`."""
        changed = {change.ref for change in changes}
        if others := [add for add, ref in adds if ref not in changed]:
            await self._queue.add(others)
        conflicts: set[ObjectRef] = set()
        for at in range(0, len(changes), CHUNK):
            chunk = changes[at : at + CHUNK]
            refs = {change.ref for change in chunk}
            conflicts |= await self._add([pair for pair in adds if pair[1] in refs], chunk)
        return conflicts

    async def _add(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        ordered, rows = self.record.change_rows(changes)
        if len(adds) > BATCH:
            # An object may wake thousands. Its own request must not run before the record has it,
            # others may: a run too many does no harm.
            adds = sorted(adds, key=lambda pair: not pair[0].cause)
            await self._queue.add([add for add, _ in adds[:-BATCH]])
            adds = adds[-BATCH:]
        numbers = {ref: number for number, ref in enumerate(ordered, start=1)}
        items = [add for add, _ in adds]
        objects = [numbers[ref] for _, ref in adds if ref]
        conflicts = await self._end_with(
            self._pop(_MOST_JOINED),
            lambda runs: self._queue.add_recorded(items, objects, rows, self._ending_of(runs)),
        )
        return {ordered[number - 1] for number in conflicts}

    # --- take -------------------------------------------------------------------------------------

    async def take(self, room: Room, start: Callable[[Sequence[Lease]], None]) -> None:
        """See `ControllerStore.take`."""
        await self._queue.serve(room, start, wait=TAKE_WAIT)

    def keep_leases(self, on_lost: Callable[[Lease], None]) -> Heartbeat:
        """See `ControllerStore.keep_leases`."""
        self._heartbeat = self._make_heartbeat(on_lost)
        return self._heartbeat

    # --- finish -----------------------------------------------------------------------------------

    def finish(self, finished: Finished) -> None:
        """See `ControllerStore.finish`."""
        if self._heartbeat is not None:
            self._heartbeat.outlive(finished.lease)
        loop = asyncio.get_running_loop()
        if not self._finished:
            self._waits_since = loop.time()
        self._finished.append(finished)
        if finished.again or finished.has_written:
            # What a run has written comes back as a change that wakes its request again.
            self._due.set()
        elif not self._is_timed:
            self._is_timed = True
            loop.call_later(END_WITHIN.total_seconds(), self._check_due)

    def _check_due(self) -> None:
        """One timer for all runs: those that ended meanwhile with an add need none."""
        self._is_timed = False
        if not self._finished:
            return
        loop = asyncio.get_running_loop()
        left = self._waits_since + END_WITHIN.total_seconds() - loop.time()
        if left > 0:
            self._is_timed = True
            loop.call_later(left, self._check_due)
        else:
            self._due.set()

    async def run(self) -> None:
        """See `ControllerStore.run`."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                while self._finished:
                    await self._end_patiently()
        finally:
            # If the store is away or hangs, the reaper of another process recovers them.
            with contextlib.suppress(QueueUnavailableError, TimeoutError):
                async with asyncio.timeout(_LAST_WITHIN.total_seconds()):
                    while self._finished:
                        await self.end_next()

    async def emptied(self, *, within: timedelta) -> None:
        """See `ControllerStore.emptied`."""
        self._due.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                while self._finished or self._ending:
                    self._emptied.clear()
                    await self._emptied.wait()

    async def _end_patiently(self) -> None:
        try:
            await self.end_next()
            self._log_once.reset()
        except QueueUnavailableError as e:
            if self._log_once.should_log(str(e)):
                log.warning("queue_unavailable", controller=self._name, error=str(e))
            await asyncio.sleep(_PAUSE.total_seconds())

    async def end_next(self) -> None:
        """End the leases of the runs that have waited for longest.

        Raises:
            QueueUnavailableError: they wait again.
        """
        is_stopped = self._finished[0].again
        await self._end_with(
            self._pop(CHUNK, are_stopped=is_stopped), self._return if is_stopped else self._end
        )

    async def _end(self, runs: Sequence[Finished]) -> tuple[Sequence[int], list[Lease]]:
        return (), await self._queue.done_recorded(self._ending_of(runs))

    async def _return(self, runs: Sequence[Finished]) -> tuple[Sequence[int], list[Lease]]:
        lost = await return_stopped(self._queue, runs)
        written = [run for run in runs if run.has_written]
        return (), lost + await self._queue.done_recorded(self._ending_of(written))

    def _pop(self, most: int, *, are_stopped: bool = False) -> list[Finished]:
        """Those at the front whose runs were stopped, or were not."""
        runs: list[Finished] = []
        while self._finished and len(runs) < most and self._finished[0].again == are_stopped:
            runs.append(self._finished.popleft())
        self._waits_since = asyncio.get_running_loop().time()
        return runs

    async def _end_with(
        self,
        runs: Sequence[Finished],
        send: Callable[[Sequence[Finished]], Awaitable[tuple[Sequence[int], list[Lease]]]],
    ) -> Sequence[int]:
        """Send a call that ends runs besides; if it fails, they wait again."""
        self._ending += len(runs)
        try:
            answer, lost = await send(runs)
        except BaseException:
            self._finished.extendleft(reversed(runs))
            self._due.set()
            raise
        finally:
            self._ending -= len(runs)
            self._emptied.set()
        if runs and self._heartbeat is not None:
            self._heartbeat.drop([run.lease for run in runs])
        for lease in lost:
            log.warning("lease_lost", request=str(lease.request))
        return answer

    def _ending_of(self, runs: Sequence[Finished]) -> Ending:
        if not runs:
            return NO_ENDING
        return Ending(
            [run.lease for run in runs],
            {run.lease.request: run.note for run in runs if run.note},
            self.record.read_rows([run.success for run in runs if run.success]),
            self.record.last_runs.rows([run.last_run for run in runs if run.last_run]),
            {run.lease.request: encode_trigger(*read) for run in runs if (read := run.own_read)},
        )


async def return_stopped(queue: Queue, runs: Sequence[Finished]) -> list[Lease]:
    """Put the requests of runs that were stopped back into the queue.

    The leases of those that have written go on: they end with their notes.

    Returns:
        The leases that were no longer ours.
    """
    lost = await queue.give_back([run.lease for run in runs if not run.has_written])
    anew = [run.lease for run in runs if run.has_written]
    await queue.add(
        [Add(of.request, of.priority, of.trigger, of.trace, of.charged_cluster) for of in anew]
    )
    return lost
