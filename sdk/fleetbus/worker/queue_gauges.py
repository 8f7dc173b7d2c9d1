"""Shows a queue as gauges, and logs its circuit breakers (rule Q9).

A queue may hold items of any cluster, one that left for example; only those of the fleet have
series, so that no name from an event makes one.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from fleetbus.process import metrics
from fleetbus.workqueue.queue import Breaker, Stats

log = structlog.get_logger()


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
