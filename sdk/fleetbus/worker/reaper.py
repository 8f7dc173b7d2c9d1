"""Calls for the recovery of dead owners' leases once a second, and measures the queue (rule Q6).

The recovery itself is in `workqueue/lua/reap.lua`, and in `MemoryQueue.reap`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.fleet.fleet import Fleet
from fleetbus.worker.queue_gauges import QueueGauges
from fleetbus.worker.slots import Slots
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Queue

log = structlog.get_logger()

REAP_EVERY: Final = timedelta(seconds=1)
"""A quarter of a shorter lease: after half of one without a call nothing is reaped (rule Q6)."""


class Reaper:
    """Reaps the queue of one controller; each process does, and most find nothing.

    Args:
        controller: its name.
        queue: its queue.
        fleet: the clusters that have series.
        slots: shared by as many clusters as the fleet has.
    """

    def __init__(self, *, controller: str, queue: Queue, fleet: Fleet, slots: Slots) -> None:
        self._controller = controller
        self._queue = queue
        self._fleet = fleet
        self._slots = slots
        self._gauges = QueueGauges(controller)

    async def run(self) -> None:
        """Reap and measure until cancelled."""
        pause = min(REAP_EVERY, self._queue.policy.lease / 4)
        while True:
            await asyncio.sleep(pause.total_seconds())
            try:
                reaped = await self._queue.reap()
                await self._measure()
            except QueueUnavailableError:
                continue  # the worker's loop logs it; the next pass comes soon
            if reaped.recovered or reaped.quarantined:
                log.warning(
                    "leases_recovered",
                    controller=self._controller,
                    recovered=reaped.recovered,
                    quarantined=[str(request) for request in reaped.quarantined],
                )

    def share_slots(self) -> None:
        """Divide the slots among the clusters, once the fleet is known."""
        if self._fleet.is_known:
            self._slots.share(len(self._fleet.clusters()))

    async def _measure(self) -> None:
        self.share_slots()
        stats = await self._queue.stats()
        # Not before: one that left meanwhile has no series any more.
        names = [info.name for info in self._fleet.clusters()]
        self._gauges.show(stats, names)
