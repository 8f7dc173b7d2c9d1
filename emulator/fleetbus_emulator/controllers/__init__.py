"""Simulated controllers: Deployments become ready, Jobs complete, garbage is collected.

They subscribe to the emulated API server in-process and write through it like any client: no
polling, no write while nothing changes. `runtime` is what they run on, `selection` lists them.

    async with simulate(cluster, timing=Timing.lifelike(), seed=7) as (simulator,):
        cluster.create("apps/v1/deployments", deployment)
        await simulator.settled()       # its pods are ready

Objects misbehave on request, by an annotation on the pod or on any of its managers, or by an image:
see `pods/behavior.py`. Which controllers there are is a choice:

    simulate(cluster, controllers=HOUSEKEEPING)                     # a test writes every status
    simulate(cluster, controllers=CONTROL_PLANE,                    # pods stay Pending, deletions
             timing=Timing(collect=timedelta(milliseconds=30)))     # take a moment: as the servers
                                                                    # of recorded answers were run
    simulate(cluster, controllers=EVERYTHING - {"root-ca"})

Time is that of the cluster's clock: a `ManualClock` lets hours pass at once.
"""

from fleetbus_emulator.controllers.runtime.clock import ManualClock
from fleetbus_emulator.controllers.runtime.simulator import Simulator, simulate
from fleetbus_emulator.controllers.runtime.timing import Timing
from fleetbus_emulator.controllers.selection import (
    CONTROL_PLANE,
    EVERYTHING,
    HOUSEKEEPING,
    WORKLOADS,
)

__all__ = [
    "CONTROL_PLANE",
    "EVERYTHING",
    "HOUSEKEEPING",
    "WORKLOADS",
    "ManualClock",
    "Simulator",
    "Timing",
    "simulate",
]
