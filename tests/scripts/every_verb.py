"""A controller that uses every verb of a writer's rights once; a module for the reconciler."""

from __future__ import annotations

import fleetbus

MAPS, NAMESPACES = "v1/configmaps", "v1/namespaces"
shop = fleetbus.Controller("shop")
shop.watch("v1/pods")


@shop.reconcile
async def use_every_verb(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    """Make, change and delete a ConfigMap and a Namespace."""
    cluster = fleet.cluster(request.cluster)
    pod = await cluster.get("v1/pods", request.namespace, request.name)
    if pod is None or request.name != "web":
        return
    place = (MAPS, request.namespace, "made")
    made = {"metadata": {"name": "made", "namespace": request.namespace}}
    await cluster.create(MAPS, made)
    for namespace, resource, name in ((request.namespace, MAPS, "made"), ("", NAMESPACES, "shop")):
        kind = {MAPS: "ConfigMap", NAMESPACES: "Namespace"}[resource]
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        whole = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
        await cluster.apply(resource, whole)
        found = await cluster.live.get(resource, namespace, name)
        assert found is not None
        found["metadata"]["labels"] = {"updated": "yes"}
        await cluster.live.update(resource, found)
        await cluster.patch(resource, namespace, name, {"metadata": {"labels": {"a": "b"}}})
        await cluster.live.list(resource, namespace)
    for _ in range(2):  # the second raises the count of the first
        await cluster.event(pod, reason="Seen", message="seen")
    live = await cluster.live.get(*place)
    assert live is not None
    await cluster.delete(*place, uid=live["metadata"]["uid"])
    print(f"every verb used in {request.cluster}", flush=True)
