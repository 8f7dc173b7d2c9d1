"""Feeds the animals among the ConfigMaps of every cluster, and greets each one with an Event."""

import fleetbus

MAPS = "v1/configmaps"

feeder = fleetbus.Controller("feed-animals")
feeder.watch(MAPS)


@feeder.reconcile
async def feed(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    cluster = fleet.cluster(request.cluster)
    config_map = await cluster.get(MAPS, request.namespace, request.name)
    if config_map is None:
        return
    await cluster.event(
        config_map, reason="ConfigMapFound", message=f"found {request.name} in {cluster.name}"
    )
    if config_map["metadata"].get("labels", {}).get("type") == "animal":
        # Not sent while it changes nothing, so a fed animal costs no request.
        change = {"data": {"stomach": "food"}}
        await cluster.patch(MAPS, request.namespace, request.name, change)
