"""W17 with a real watcher and a real projector: the objects of a type that ended are deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from fleetbus_watcher.timing import WatcherTiming
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable[Rig]]
GADGETS = "example.com/v1/gadgets"
KEY = "example.com/gadgets"
CRD = definition("example.com", "gadgets", "Gadget")


@pytest.mark.full  # test_removed_types of the watcher and of the reconciler have it
async def test_w17_p6_what_ended_while_nobody_watched_is_gone_and_what_came_again_is_there(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(GADGETS, CRDS))
    rig.watcher_timing = WatcherTiming(second_discovery=timedelta(milliseconds=50))
    cluster = rig.clusters["a"]
    cluster.create(CRDS, CRD)
    for number in range(25):  # more than the fuse lets pass at once
        cluster.create(GADGETS, {"metadata": {"name": f"g{number}"}}, "default")
    rig.start_reconciler()
    rig.start_watcher("a")
    await rig.synced(KEY)
    await rig.stop_watcher("a")
    cluster.delete(CRDS, None, "gadgets.example.com")
    rig.start_watcher("a")
    await eventually(lambda: has_objects(rig, 0))
    cluster.create(CRDS, CRD)
    cluster.create(GADGETS, {"metadata": {"name": "new"}}, "default")
    await eventually(lambda: has_objects(rig, 1))
    await rig.synced(KEY)


async def has_objects(rig: Rig, number: int) -> bool:
    return await rig.reader.count("a", KEY) == number
