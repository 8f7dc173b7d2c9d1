"""The controller of the restart benchmark: writes down each run, and the change that it saw."""

from __future__ import annotations

import os
import time

import fleetbus

MAPS = "v1/configmaps"
OUT = os.open(os.environ["BENCH_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

bench = fleetbus.Controller("bench", concurrency=64)
bench.watch(MAPS)


@bench.reconcile
async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    config_map = await fleet.cluster(request.cluster).get(MAPS, request.namespace, request.name)
    turn = config_map["data"]["turn"] if config_map else ""
    os.write(OUT, f"{time.time()} {request.name} {turn}\n".encode())
