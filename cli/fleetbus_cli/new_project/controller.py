"""Greets every ConfigMap with the label `greet=yes`, in every cluster of the fleet."""

import fleetbus

MAPS = "v1/configmaps"

controller = fleetbus.Controller("my-project")
controller.watch(MAPS, selector="greet=yes")


@controller.reconcile
async def reconcile(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    cluster = fleet.cluster(request.cluster)
    config_map = await cluster.get(MAPS, request.namespace, request.name)
    if config_map is None or request.left:
        return  # it is gone, or has lost the label
    greeting = {"example.com/greeting": f"hello from {request.cluster}"}
    patch = {"metadata": {"annotations": greeting}}
    # The change wakes this function again; then the patch changes nothing and is not sent.
    await cluster.patch(MAPS, request.namespace, request.name, patch)
