"""The demo's reconciler: counts the shop's Pods of every cluster into one ConfigMap on the hub.

It reads clusters from the snapshot and writes to another cluster, which is what fleetbus is for.
"""

from __future__ import annotations

from collections.abc import Iterable

import fleetbus

NAMESPACE = "shop"
HUB_NAMESPACE = "default"
NAME = "census"

census = fleetbus.Controller("census")


async def _to_census(
    _pod: fleetbus.Object | None, _request: fleetbus.Request, fleet: fleetbus.Fleet
) -> Iterable[fleetbus.Request]:
    """Whatever Pod changed in whatever cluster, there is one census to take."""
    return [census.request(fleet.hub, HUB_NAMESPACE, NAME)]


census.watch("v1/pods", namespaces=[NAMESPACE], map=_to_census)


@census.reconcile
async def take_census(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    """Count, and write the counts down where everybody can read them."""
    counts: dict[str, str] = {}
    for cluster in fleet.clusters("role=member"):
        pods = await fleet.cluster(cluster.name).list("v1/pods", NAMESPACE)
        counts[cluster.name] = str(len(pods))
    await fleet.cluster(request.cluster).apply(
        "v1/configmaps",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": request.namespace, "name": request.name},
            "data": counts,
        },
        field_manager=census.name,
    )
