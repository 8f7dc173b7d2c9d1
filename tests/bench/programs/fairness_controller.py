"""The controller of the fairness benchmark: notes how long a change of `calm` waited."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import pathlib
import time
from datetime import timedelta

import fleetbus
from fleetbus.run.current import current_run

PODS = "v1/pods"
TIMEOUT = timedelta(seconds=float(os.environ["BENCH_TIMEOUT"]))
waits: list[tuple[float, float]] = []
"""When the change was planned, and how long after that its reconcile started; in seconds."""
started: dict[str, int] = {}

bench = fleetbus.Controller("fairness", concurrency=16, timeout=TIMEOUT)
bench.watch(PODS)


@bench.reconcile
async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    run, now = current_run(), time.time()
    started[request.cluster] = started.get(request.cluster, 0) + 1
    if request.cluster == "dead":
        await asyncio.sleep(3600)  # no answer: the timeout ends it
    if request.cluster == "calm" and run and run.trigger:
        planned = int(run.trigger[1]) / 1e6  # the injector writes the time as the version
        waits.append((planned, now - planned))
    await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)


@atexit.register
def write() -> None:
    path = pathlib.Path(os.environ["BENCH_OUT"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"waits": waits, "started": started}))
