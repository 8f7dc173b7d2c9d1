"""Recovers leases whose owners have died, and shows the queue as gauges (rules Q6, Q7, Q9).

A queue may hold items of any cluster, one that left for example; only those of the fleet have
series, so that no name from an event makes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.fleet.fleet import Fleet
from fleetbus.process import metrics
from fleetbus.worker.slots import Slots
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Breaker, Queue, Stats

log = structlog.get_logger()

_REAP_EVERY: Final = timedelta(seconds=1)
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
        pause = min(_REAP_EVERY, self._queue.policy.lease / 4)
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


class QueueGauges:
    """The gauges of one controller's queue; also logs when a circuit breaker opens or closes."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._open: dict[str, Breaker] = {}

    def show(self, stats: Stats, clusters: Iterable[str]) -> None:
        """Set every gauge; what is absent is 0."""
        depth = metrics.QUEUE_DEPTH
        depth.labels(self._controller, "ready").set(sum(stats.depth.values()))
        depth.labels(self._controller, "delayed").set(stats.delayed)
        depth.labels(self._controller, "processing").set(stats.processing)
        depth.labels(self._controller, "quarantined").set(stats.quarantined)
        ready: dict[str, int] = {}
        for (cluster, _), count in stats.depth.items():
            ready[cluster] = ready.get(cluster, 0) + count
        self._log_breakers({breaker.cluster: breaker for breaker in stats.breakers})
        for cluster in clusters:
            self._show_cluster(cluster, ready.get(cluster, 0), stats)

    def _show_cluster(self, cluster: str, ready: int, stats: Stats) -> None:
        labels, age = (self._controller, cluster), stats.ages.get(cluster)
        metrics.QUEUE_CLUSTER_DEPTH.labels(*labels).set(ready)
        metrics.QUEUE_OLDEST_SECONDS.labels(*labels).set(age.total_seconds() if age else 0)
        metrics.QUEUE_QUARANTINED.labels(*labels).set(stats.kept.get(cluster, 0))
        metrics.QUEUE_BREAKER_OPEN.labels(*labels).set(cluster in self._open)

    def _log_breakers(self, found: dict[str, Breaker]) -> None:
        for cluster in found.keys() - self._open.keys():
            failures = found[cluster].failures
            log.warning(
                "breaker_opened", controller=self._controller, cluster=cluster, failures=failures
            )
        for cluster in self._open.keys() - found.keys():
            log.info("breaker_closed", controller=self._controller, cluster=cluster)
        self._open = found
