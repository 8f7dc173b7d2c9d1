"""The queue of a controller together with its record: both change in one step (rules P8, Q12).

So the record is never ahead of the queue nor behind it, a run knows what its object was like when
it was enqueued, and nothing is enqueued for a state that another process has overtaken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from fleetbus.intake.record import CHUNK, Change, Record
from fleetbus.run.current import ObjectRef
from fleetbus.workqueue.notify import wake
from fleetbus.workqueue.queue import BATCH, Add, Lease
from fleetbus.workqueue.scripts import NO_ENDING, Ending

if TYPE_CHECKING:
    from fleetbus.intake.last_runs import LastRun
    from fleetbus.reconcile import Request
    from fleetbus.run.current import Run
    from fleetbus.workqueue.redis import RedisQueue


_MOST_JOINED: Final = 100
"""Runs that end in a call that adds; a script blocks the server while it runs (rule P16)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Runs that are over.

    Attributes:
        leases: those that end.
        notes: for the next run of a request.
        successes: the runs that succeeded.
        last_runs: how runs ended, for `fleetbus explain`.
    """

    leases: Sequence[Lease]
    notes: Mapping[Request, bytes]
    successes: Sequence[Run]
    last_runs: Sequence[tuple[Request, LastRun]]

    @property
    def size(self) -> int:
        """Maximum number of runs that it is about, which determines the duration of a script."""
        return max(len(self.leases), len(self.successes), len(self.last_runs))


class RecordedQueue(Protocol):
    """Adds and ends requests, and keeps the record of their objects.

    Every call may be repeated after `QueueUnavailableError`.
    """

    async def until_add(self, *, within: timedelta) -> None:
        """Return when requests are about to be added, or when that time has passed.

        If `done` is called before anything else is awaited, both become one call to the store.
        """
        ...

    async def add(
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

    async def done(self, ended: Ended) -> list[Lease]:
        """End leases; before that, store what their runs have read and how they ended.

        Returns:
            The leases that were no longer ours.
        """
        ...


class _Joined:
    """Runs that end in the call that adds requests."""

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self._refused: asyncio.Future[list[Lease] | None] | None = None

    async def join(self, ended: Ended) -> list[Lease] | None:
        """Return the refused leases once they have ended; None if they have not."""
        self.ended = ended
        self._refused = asyncio.get_running_loop().create_future()
        return await self._refused

    def settle(self, refused: list[Lease] | None) -> None:
        """Let the waiting call return."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(refused)


class RecordedRedisQueue:
    """Implements `RecordedQueue` with one script call per 200 objects.

    Args:
        queue: of the controller.
        record: of the same controller, in the same store.
    """

    def __init__(self, queue: RedisQueue, record: Record) -> None:
        self._queue = queue
        self._record = record
        self._waiting_for_add: asyncio.Future[None] | None = None
        self._joined: _Joined | None = None

    async def until_add(self, *, within: timedelta) -> None:
        """See `RecordedQueue.until_add`."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting_for_add = loop.create_future()
        timer = loop.call_later(within.total_seconds(), wake, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting_for_add = None

    async def add(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """See `RecordedQueue.add`."""
        joined = await self._let_join()
        try:
            return await self._add(adds, changes, joined)
        finally:
            joined.settle(None)  # if the call has failed

    async def _let_join(self) -> _Joined:
        """Let the task that waits for this moment end its runs in the same call."""
        joined = _Joined()
        if self._waiting_for_add is not None:
            wake(self._waiting_for_add)
            self._joined = joined
            await asyncio.sleep(0)
            self._joined = None
        return joined

    async def _add(
        self,
        adds: Sequence[tuple[Add, ObjectRef | None]],
        changes: Sequence[Change],
        joined: _Joined,
    ) -> set[ObjectRef]:
        changed = {change.ref for change in changes}
        await self._queue.add([add for add, ref in adds if ref not in changed])
        conflicts: set[ObjectRef] = set()
        chunks = [changes[at : at + CHUNK] for at in range(0, len(changes), CHUNK)]
        if joined.ended and not chunks:
            chunks.append(changes)
        for number, chunk in enumerate(chunks):
            refs = {change.ref for change in chunk}
            its = [pair for pair in adds if pair[1] in refs]
            conflicts |= await self._add_chunk(its, chunk, joined if number == 0 else _Joined())
        return conflicts

    async def _add_chunk(
        self,
        adds: Sequence[tuple[Add, ObjectRef | None]],
        changes: Sequence[Change],
        joined: _Joined,
    ) -> set[ObjectRef]:
        ordered, rows = self._record.change_rows(changes)
        if len(adds) > BATCH:
            # An object may wake thousands. Its own request must not run before the record has it,
            # others may: a run too many does no harm.
            adds = sorted(adds, key=lambda pair: not pair[0].cause)
            await self._queue.add([add for add, _ in adds[:-BATCH]])
            adds = adds[-BATCH:]
        numbers = {ref: number for number, ref in enumerate(ordered, start=1)}
        conflicts, refused = await self._queue.add_recorded(
            [add for add, _ in adds],
            [numbers[ref] for _, ref in adds if ref],
            rows,
            self._ending(joined.ended) if joined.ended else NO_ENDING,
        )
        joined.settle(refused)
        return {ordered[number - 1] for number in conflicts}

    async def done(self, ended: Ended) -> list[Lease]:
        """See `RecordedQueue.done`."""
        joined = self._joined
        if joined is not None and joined.ended is None and ended.size <= _MOST_JOINED:
            refused = await joined.join(ended)
            if refused is not None:
                return refused
        lost: list[Lease] = []
        for portion in _divide(ended):
            lost += await self._queue.done_recorded(self._ending(portion))
        return lost

    def _ending(self, ended: Ended) -> Ending:
        return Ending(
            ended.leases,
            ended.notes,
            self._record.read_rows(ended.successes),
            self._record.last_runs.rows(ended.last_runs),
        )


def _divide(ended: Ended) -> Iterator[Ended]:
    """Divide what is too much for one call (rule P16); what runs leave comes first (rule Q12)."""
    if ended.size <= CHUNK:
        yield ended
        return
    for at in range(0, max(len(ended.successes), len(ended.last_runs)), CHUNK):
        until = at + CHUNK
        yield Ended((), {}, ended.successes[at:until], ended.last_runs[at:until])
    for at in range(0, len(ended.leases), CHUNK):
        yield Ended(ended.leases[at : at + CHUNK], ended.notes, (), ())
