"""Feeds every animal each two seconds; start it several times, and the processes share the work."""

import os
import socket
from datetime import timedelta

import fleetbus

REPLICA = os.environ.get("REPLICA") or f"{socket.gethostname()}-{os.getpid()}"
AGAIN = timedelta(seconds=2)

keeper = fleetbus.Controller("sharded")
keeper.watch("v1/configmaps", namespaces=["default"], selector="kind=animal")


@keeper.reconcile
async def feed(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None:
    cluster = fleet.cluster(request.cluster)
    animal = await cluster.get("v1/configmaps", request.namespace, request.name)
    if animal is None:
        print(f"{REPLICA}: {request.cluster} / {request.name} is gone", flush=True)
        return None
    print(f"{REPLICA}: feeds {request.cluster} / {request.name}", flush=True)
    return fleetbus.Result(requeue_after=AGAIN)
