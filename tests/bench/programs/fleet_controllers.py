"""Controllers of the large fleet: some select every Pod, the others few of them.

They note how long the change of a sampled object took until its reconcile started.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import time

import fleetbus
from fleetbus.run.current import current_run

PODS = "v1/pods"
SAMPLED, RARE = "sampled", "bench.fleetbus.dev/rare=yes"
waits: dict[tuple[str, str, float], float] = {}
"""Delay from a planned change to the start of its first successful reconcile; by controller,
cluster and the time for which it was planned. A store that was lost repeats reconciles."""


async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    run, now = current_run(), time.time()
    await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
    if request.namespace == SAMPLED and run and run.trigger:
        planned = int(run.trigger[1]) / 1e6  # the generator writes the time as the version
        waits.setdefault((request.controller, request.cluster, planned), now - planned)


def make(name: str, selector: str) -> fleetbus.Controller:
    controller = fleetbus.Controller(name, concurrency=32)
    controller.watch(PODS, selector=selector)
    controller.reconcile(note)
    return controller


# Controllers are found as variables of their module.
globals().update(
    {f"wide_{i}": make(f"wide-{i}", "") for i in range(int(os.environ["BENCH_WIDE"]))}
    | {f"narrow_{i}": make(f"narrow-{i}", RARE) for i in range(int(os.environ["BENCH_NARROW"]))}
)


@atexit.register
def write() -> None:
    path = pathlib.Path(os.environ["BENCH_OUT"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps([[*key, wait] for key, wait in waits.items()]))
