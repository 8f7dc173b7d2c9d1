"""Messages that a consumer refuses: counted, logged, never handled (rules B8, B18)."""

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
    """Tells of refused messages, once and then every 30 s for each cluster: it may send millions.

    They count for the cluster of their subject, whatever their body says.

    Args:
        consumer: the name of the controller, or of the projector.
        is_member: whether a cluster is in the fleet; others count together.
    """

    def __init__(self, consumer: str, is_member: Callable[[str], bool]) -> None:
        self._consumer = consumer
        self._is_member = is_member
        self._log_once = LogOnce()
        self._unlogged: Counter[str] = Counter()
        metrics.REJECTED_MESSAGES.labels(consumer, "")

    def record(self, delivery: Delivery) -> None:
        """Count a message that could not be read."""
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
        """A cluster left; its series are the caller's to forget."""
        self._log_once.reset(cluster)
        self._unlogged.pop(cluster, None)
