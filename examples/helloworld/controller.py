"""Prints cluster, namespace and name for every reconcile of a Pod, in every cluster."""

import fleetbus

hello = fleetbus.Controller("helloworld")
hello.watch("v1/pods")


@hello.reconcile
async def say(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    pod = await fleet.cluster(request.cluster).get("v1/pods", request.namespace, request.name)
    phase = pod["status"].get("phase", "?") if pod else "gone"
    print(f"{request.cluster} / {request.namespace} / {request.name}: {phase}", flush=True)
