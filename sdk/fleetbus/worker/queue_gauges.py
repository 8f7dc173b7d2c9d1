"""Shows a queue as gauges, and logs its circuit breakers (rule Q9).

A queue may hold items of any cluster, one that left for example; only those of the fleet have
series, so that no name from an event makes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from fleetbus.process import metrics
from fleetbus.workqueue.queue import Breaker, Stats

log = structlog.get_logger()

_GAUGES: Final = (
    metrics.QUEUE_CLUSTER_DEPTH,
    metrics.QUEUE_OLDEST_SECONDS,
    metrics.QUEUE_QUARANTINED,
    metrics.QUEUE_BREAKER_OPEN,
)


class QueueGauges:
    """The gauges of one controller's queue; also logs when a circuit breaker opens or closes."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._open: dict[str, Breaker] = {}
        # Cluster → the values of its gauges.
        self._shown: dict[str, tuple[float, ...]] = {}

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
        now = {cluster: self._values(cluster, ready.get(cluster, 0), stats) for cluster in clusters}
        # Most clusters have an empty queue: to set all gauges of a thousand takes 10 ms.
        for cluster, values in now.items():
            if self._shown.get(cluster) != values:
                for gauge, value in zip(_GAUGES, values, strict=True):
                    gauge.labels(self._controller, cluster).set(value)
        self._shown = now

    def _values(self, cluster: str, ready: int, stats: Stats) -> tuple[float, ...]:
        """The values of `_GAUGES`."""
        age, quarantined = stats.ages.get(cluster), stats.kept.get(cluster, 0)
        return (ready, age.total_seconds() if age else 0, quarantined, cluster in self._open)

    def _log_breakers(self, breakers: dict[str, Breaker]) -> None:
        for cluster in breakers.keys() - self._open.keys():
            failures = breakers[cluster].failures
            log.warning(
                "breaker_opened", controller=self._controller, cluster=cluster, failures=failures
            )
        for cluster in self._open.keys() - breakers.keys():
            log.info("breaker_closed", controller=self._controller, cluster=cluster)
        self._open = breakers
