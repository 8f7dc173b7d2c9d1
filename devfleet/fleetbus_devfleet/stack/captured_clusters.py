"""The clusters of a capture as those of a stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetbus.errors import CaptureError
from fleetbus_devfleet.stack.plan import ClusterPlan

if TYPE_CHECKING:
    from fleetbus_cli.capture.reading import Capture


MOST_WATCHERS: Final = 8
"""Clusters that get a watcher each, as in `fleetbus dev up`; more of them share one."""


def clusters_of(capture: Capture) -> tuple[ClusterPlan, ...]:
    """The clusters with their labels, the hub first.

    Raises:
        CaptureError: the hub is not among them; it holds the fleet and its MultiClusterResources.
    """
    header = capture.header
    if not header.hub:
        names = ", ".join(cluster.name for cluster in header.clusters)
        raise CaptureError(
            f"{capture.path}: the hub is not in it, only {names or 'no cluster'}: capture it too"
        )
    ordered = sorted(header.clusters, key=lambda cluster: cluster.name != header.hub)
    return tuple(ClusterPlan(name=cluster.name, labels=cluster.labels) for cluster in ordered)
