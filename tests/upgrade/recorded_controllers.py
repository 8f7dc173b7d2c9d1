"""Controllers whose queues have every kind of item when their state is recorded.

Each works on the config maps of one cluster with the label `recorded`: one ends well, one comes
back after an hour, one fails, and one does not end.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import fleetbus

MAPS: Final = "v1/configmaps"
WELL, LATER, FAILS, HANGS = "well", "later", "fails", "hangs"

recorded = fleetbus.Controller("recorded", timeout=timedelta(hours=1))
recorded.watch(MAPS, selector="recorded")


@recorded.reconcile
async def work(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None:
    """Do what the name of the object says."""
    await fleet.cluster(request.cluster).get(MAPS, request.namespace, request.name)
    if request.name == FAILS:
        raise RuntimeError("as it was asked to")
    if request.name == HANGS:
        await asyncio.Event().wait()
    return fleetbus.Result(requeue_after=3600) if request.name == LATER else None
