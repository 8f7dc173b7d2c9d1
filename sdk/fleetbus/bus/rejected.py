"""Messages that a consumer rejects: counted, logged, never handled (rules B8, B18)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

from fleetbus.bus.buffer import Delivery
from fleetbus.process import metrics
from fleetbus.process.log_once import LogOnce
from fleetbus_proto.admission import cluster_of

log = structlog.get_logger()


class RejectedMessages:
    """Counts rejected messages, and logs them at most every 30 s per cluster: it may send millions.

    They count for the cluster of their subject, whatever their body says.

    Args:
        consumer: the name of the controller, or of the projector.
        is_member: whether a cluster is in the fleet; all others are counted together.
    """

    def __init__(self, consumer: str, is_member: Callable[[str], bool]) -> None:
        self._consumer = consumer
        self._is_member = is_member
        self._log_once = LogOnce()
        self._unlogged: Counter[str] = Counter()
        metrics.REJECTED_MESSAGES.labels(consumer, "")

    def record(self, delivery: Delivery) -> None:
        """Count and log a rejected message."""
        named = cluster_of(delivery.subject)
        cluster = named if self._is_member(named) else ""
        metrics.REJECTED_MESSAGES.labels(self._consumer, cluster).inc()
        self._unlogged[cluster] += 1
        if self._log_once.should_log(key=cluster):
            log.error(
                "message_rejected",
                consumer=self._consumer,
                cluster=cluster,
                subject=delivery.subject,
                sequence=delivery.sequence,
                reason=delivery.problem,
                count=self._unlogged.pop(cluster),
            )

    def forget_cluster(self, cluster: str) -> None:
        """Forget a cluster that left; its metric series are the caller's to remove."""
        self._log_once.reset(cluster)
        self._unlogged.pop(cluster, None)
