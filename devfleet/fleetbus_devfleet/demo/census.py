"""The demo's reconciler: counts the shop of every cluster into one ConfigMap on the hub.

It reads all clusters from the snapshot and writes to one of them, which is what fleetbus is for.
"""

from __future__ import annotations

from collections.abc import Iterable

import fleetbus

NAMESPACE = "shop"
ORDERS = "app=order"
HUB_NAMESPACE = "default"
NAME = "census"

census = fleetbus.Controller("census")


async def _to_census(
    _changed: fleetbus.Object | None, _request: fleetbus.Request, fleet: fleetbus.Fleet
) -> Iterable[fleetbus.Request]:
    """Whatever changed in whatever cluster, there is one census to take."""
    return [census.request(fleet.hub, HUB_NAMESPACE, NAME)]


census.watch("v1/pods", namespaces=[NAMESPACE], map=_to_census)
census.watch("v1/configmaps", namespaces=[NAMESPACE], map=_to_census)


@census.reconcile
async def take_census(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    """Count, and write the counts down where everybody can read them."""
    counts: dict[str, str] = {}
    for info in fleet.clusters("role=member"):
        cluster = fleet.cluster(info.name)
        pods = await cluster.list("v1/pods", NAMESPACE)
        orders = await cluster.list("v1/configmaps", NAMESPACE, ORDERS)
        counts |= {f"{info.name}.pods": str(len(pods)), f"{info.name}.orders": str(len(orders))}
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
