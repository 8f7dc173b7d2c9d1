"""A queue in memory with a record in a store: separate steps, where one process is all there is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fleetbus.intake.controller_store import TAKE_WAIT, Finished, return_stopped
from fleetbus.intake.record import Record
from fleetbus.workqueue.heartbeat import Heartbeat
from fleetbus.workqueue.queue import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from redis.asyncio import Redis

    from fleetbus.controller.controller import Controller
    from fleetbus.intake.record import Change
    from fleetbus.intake.unsynced import Pair
    from fleetbus.reconcile import Request
    from fleetbus.run.current import ObjectRef, Version
    from fleetbus.workqueue.memory import MemoryQueue
    from fleetbus.workqueue.queue import Add, Lease, Queue, Room


class MemoryStore:
    """Implements `ControllerStore` for tests of controllers; how runs ended is not kept.

    Args:
        controller: whose; it must be whole.
        queue: of the controller.
        redis: where the record is.
        on_finish: called for each run that has ended, before its lease does.
    """

    def __init__(
        self,
        controller: Controller,
        queue: MemoryQueue,
        *,
        redis: Redis,
        on_finish: Callable[[Finished], None],
    ) -> None:
        self.queue: Queue = queue
        self.record = Record(redis, controller)
        self.load = self.record.load
        self._on_finish = on_finish
        self._finished: asyncio.Queue[Finished] = asyncio.Queue()

    async def enqueue(
        self, adds: Sequence[tuple[Add, ObjectRef | None]], changes: Sequence[Change]
    ) -> set[ObjectRef]:
        """See `ControllerStore.enqueue`."""
        conflicts = await self.record.save(changes)
        items = [add for add, ref in adds if ref not in conflicts]
        for at in range(0, len(items), BATCH):
            await self.queue.add(items[at : at + BATCH])
        return conflicts

    async def take(self, room: Room, start: Callable[[Sequence[Lease]], None]) -> None:
        """See `ControllerStore.take`."""
        leases = await self.queue.take(
            room.vacant,
            wait=TAKE_WAIT,
            capacity=room.capacity,
            default_capacity=room.default_capacity,
            probes=room.probes,
        )
        start(leases)

    def finish(self, finished: Finished) -> None:
        """See `ControllerStore.finish`."""
        self._on_finish(finished)
        self._finished.put_nowait(finished)

    async def note_used(self, request: Request, used: Iterable[Pair]) -> None:
        """See `ControllerStore.note_used`: everything is synced."""

    def offer(self, ref: ObjectRef, version: Version) -> bytes:  # noqa: ARG002 -- of no object
        """See `ControllerStore.offer`."""
        return b""

    def keep_leases(self, on_lost: Callable[[Lease], None]) -> Heartbeat:  # noqa: ARG002 -- never
        """See `ControllerStore.keep_leases`."""
        return _NoHeartbeat()

    async def run(self) -> None:
        """See `ControllerStore.run`."""
        while True:
            await self._end(await self._finished.get())
            self._finished.task_done()

    async def emptied(self, *, within: timedelta) -> None:  # noqa: ARG002 -- it takes no time
        """See `ControllerStore.emptied`."""
        await self._finished.join()

    async def _end(self, run: Finished) -> None:
        if run.again:
            await return_stopped(self.queue, [run])
        if run.has_written or not run.again:
            if run.success:
                await self.record.note_reads([run.success])
            notes = {run.lease.request: run.note} if run.note else {}
            await self.queue.done([run.lease], notes)


class _NoHeartbeat(Heartbeat):
    """A heartbeat without effect: leases do not expire while time stands still."""

    def __init__(self) -> None:
        pass

    def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

    def hold(self, leases: Iterable[Lease], *, at_most: timedelta | None = None) -> None:
        """Leases last."""

    def outlive(self, lease: Lease) -> None:
        """Leases last."""

    def drop(self, leases: Iterable[Lease]) -> None:
        """Leases last."""

    @property
    def margin(self) -> float:
        """Leases last."""
        return 0.0

    def vouches_for(self, lease: Lease) -> bool:  # noqa: ARG002 -- all of them
        """Leases last."""
        return True
