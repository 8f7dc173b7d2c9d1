"""The controller of the latency benchmark: notes when each reconcile started."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import time

import fleetbus

PODS = "v1/pods"
AT = "bench.fleetbus.dev/at"
WARM_UP = float(os.environ.get("BENCH_START", "0"))
latencies: list[float] = []

bench = fleetbus.Controller("bench", concurrency=32)
bench.watch(PODS)


@bench.reconcile
async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    started = time.time()
    pod = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
    annotations: dict[str, str] = pod["metadata"].get("annotations", {}) if pod else {}
    changed = float(annotations.get(AT, 0))
    # A change that came after the start belongs to the next run.
    if WARM_UP < changed <= started:
        latencies.append(started - changed)


@atexit.register
def write() -> None:
    path = pathlib.Path(os.environ["BENCH_OUT"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps(latencies))
