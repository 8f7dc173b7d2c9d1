"""The queue of a controller together with its record: both change in one step (rules P8, Q12).

So the record is never ahead of the queue nor behind it, a run knows what its object was like when
it was enqueued, and nothing is enqueued for a state that another process has overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fleetbus.intake.record import CHUNK, Change, Record
from fleetbus.run.current import ObjectRef
from fleetbus.workqueue.queue import BATCH, Add, Lease

if TYPE_CHECKING:
    from fleetbus.intake.last_runs import LastRun
    from fleetbus.reconcile import Request
    from fleetbus.run.current import Run
    from fleetbus.workqueue.redis import RedisQueue


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


class RecordedQueue(Protocol):
    """Adds and ends requests, and keeps the record of their objects.

    Every call may be repeated after `QueueUnavailableError`.
    """

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


class RecordedRedisQueue:
    """Implements `RecordedQueue` with one script call per 200 objects.

    Args:
        queue: of the controller.
        record: of the same controller, in the same store.
    """

    def __init__(self, queue: RedisQueue, record: Record) -> None:
        self._queue = queue
        self._record = record

    async def add(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """See `RecordedQueue.add`."""
        changed = {change.ref for change in changes}
        await self._queue.add([add for add, ref in adds if ref not in changed])
        conflicts: set[ObjectRef] = set()
        for at in range(0, len(changes), CHUNK):
            chunk = changes[at : at + CHUNK]
            refs = {change.ref for change in chunk}
            conflicts |= await self._add_chunk([one for one in adds if one[1] in refs], chunk)
        return conflicts

    async def _add_chunk(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        ordered, rows = self._record.change_rows(changes)
        if len(adds) > BATCH:
            # An object may wake thousands. Its own request must not run before the record has it,
            # others may: a run too many does no harm.
            adds = sorted(adds, key=lambda one: not one[0].cause)
            await self._queue.add([add for add, _ in adds[:-BATCH]])
            adds = adds[-BATCH:]
        numbers = {ref: number for number, ref in enumerate(ordered, start=1)}
        conflicts = await self._queue.add_recorded(
            [add for add, _ in adds], [numbers[ref] for _, ref in adds if ref], rows
        )
        return {ordered[number - 1] for number in conflicts}

    async def done(self, ended: Ended) -> list[Lease]:
        """See `RecordedQueue.done`."""
        return await self._queue.done_recorded(
            ended.leases,
            ended.notes,
            reads=self._record.read_rows(ended.successes),
            runs=self._record.last_runs.rows(ended.last_runs),
        )
