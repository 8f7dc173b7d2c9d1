"""What a queue looks like from outside: gauges per controller and cluster of the fleet (Q7, Q9).

A queue may hold items of any cluster, one that left for example; only those of the fleet have
series, so that no name from an event makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus.workqueue.queue import Stats


def show_queue(controller: str, stats: Stats, clusters: Iterable[str]) -> None:
    """Set every gauge of a controller's queue; what is not there is 0."""
    depth = metrics.QUEUE_DEPTH
    depth.labels(controller, "ready").set(sum(stats.depth.values()))
    depth.labels(controller, "delayed").set(stats.delayed)
    depth.labels(controller, "processing").set(stats.processing)
    depth.labels(controller, "quarantined").set(stats.quarantined)
    ready: dict[str, int] = {}
    for (cluster, _), count in stats.depth.items():
        ready[cluster] = ready.get(cluster, 0) + count
    broken = {breaker.cluster for breaker in stats.breakers}
    for cluster in clusters:
        age = stats.ages.get(cluster)
        metrics.QUEUE_CLUSTER_DEPTH.labels(controller, cluster).set(ready.get(cluster, 0))
        metrics.QUEUE_OLDEST_SECONDS.labels(controller, cluster).set(
            age.total_seconds() if age else 0
        )
        metrics.QUEUE_QUARANTINED.labels(controller, cluster).set(stats.kept.get(cluster, 0))
        metrics.QUEUE_BREAKER_OPEN.labels(controller, cluster).set(cluster in broken)
