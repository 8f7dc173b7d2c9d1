"""A queue in memory with a record in a store: two steps, where one process is all there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus.workqueue.queue import BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from fleetbus.intake.record import Change, Record
    from fleetbus.intake.recorded_queue import Ended
    from fleetbus.run.current import ObjectRef
    from fleetbus.workqueue.queue import Add, Lease, Queue


class SeparateSteps:
    """Implements `RecordedQueue` for tests of controllers.

    Args:
        queue: of the controller.
        record: of the same controller.
    """

    def __init__(self, queue: Queue, record: Record) -> None:
        self._queue = queue
        self._record = record

    async def until_add(self, *, within: timedelta) -> None:
        """See `RecordedQueue.until_add`: there is nothing to join."""

    async def add(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """See `RecordedQueue.add`."""
        conflicts = await self._record.save(changes)
        items = [add for add, ref in adds if ref not in conflicts]
        for at in range(0, len(items), BATCH):
            await self._queue.add(items[at : at + BATCH])
        return conflicts

    async def done(self, ended: Ended) -> list[Lease]:
        """See `RecordedQueue.done`; how runs ended is not kept."""
        await self._record.note_reads(ended.successes)
        return await self._queue.done(ended.leases, ended.notes)
