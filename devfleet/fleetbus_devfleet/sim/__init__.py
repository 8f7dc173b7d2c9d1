"""Simulated controllers: Deployments become ready, Jobs complete, garbage is collected.

They hook on the emulated API server in-process (`Cluster.subscribe`) and write through it like any
client: no polling, no write while nothing changes. Imports nothing of fleetbus.

    async with simulate(cluster, timing=Timing.lifelike(), seed=7) as (simulator,):
        cluster.create("apps/v1/deployments", deployment)
        await simulator.settled()       # its pods are ready

Objects misbehave on request, by an annotation on the pod or on any of its owners, or by an image
of that name: see `behavior.py`.
"""

from fleetbus_devfleet.sim.simulator import Simulator, simulate
from fleetbus_devfleet.sim.timing import Timing

__all__ = ["Simulator", "Timing", "simulate"]
