"""The leave records: which absent clusters were unjoined, and did not merely vanish (rule D7)."""

from __future__ import annotations

from fleetbus.clusters.membership import LEFT_LABEL
from fleetbus.kube.client import KubeClient


async def left_clusters(hub: KubeClient, namespace: str) -> frozenset[str]:
    """The clusters that were unjoined.

    Raises:
        KubeError: unreadable; the caller must conclude nothing from that.
    """
    records = await hub.list("v1/configmaps", namespace, label_selector=LEFT_LABEL)
    return frozenset(record["metadata"]["labels"][LEFT_LABEL] for record in records)
