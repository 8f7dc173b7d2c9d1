"""The leave record: how an unjoin differs from a Cluster that merely vanished (rule D7).

Unjoin writes a ConfigMap with this label in fleetbus' namespace on the hub; join removes it. Only
with it are objects on an absent cluster released; without it they are held.
"""

from __future__ import annotations

from typing import Final

from fleetbus.kube import KubeClient

LEFT_LABEL: Final = "fleetbus.dev/left-cluster"


async def left_clusters(hub: KubeClient, namespace: str) -> frozenset[str]:
    """The clusters that were unjoined.

    Raises:
        KubeError: unreadable; the caller must conclude nothing from that.
    """
    records = await hub.list("v1/configmaps", namespace, label_selector=LEFT_LABEL)
    return frozenset(record["metadata"]["labels"][LEFT_LABEL] for record in records)
