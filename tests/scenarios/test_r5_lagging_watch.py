"""R5: a watch that lags makes nobody create the same thing twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.ownership import Owner, set_owner
from fleetbus.reconcile import Request
from fleetbus_emulator.apiserver.faults import LagWatch
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig
from support.rigs.scenario import MAPS, WITHIN

PODS = "v1/pods"
LAG = timedelta(seconds=0.6)


@pytest.mark.slow
async def test_r5_a_run_that_comes_before_its_own_write_is_seen_creates_nothing_twice(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    counts: list[int] = []
    keeper = Controller("keeper")
    keeper.watch(MAPS, namespaces=["default"])

    @keeper.reconcile
    async def keep_one_pod(request: Request, fleet: Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        parent = await cluster.get(MAPS, request.namespace, request.name)
        assert parent is not None
        children = await cluster.list(PODS, request.namespace, owner=parent["metadata"]["uid"])
        counts.append(len(children))
        if not children:
            child = pod("")
            child["metadata"] = {"generateName": "child-", "namespace": request.namespace}
            set_owner(child, Owner.of(parent, cluster.name))
            await cluster.create(PODS, child)

    rig = await open_rig("a", resources=(MAPS, PODS))
    rig.start_reconciler(keeper)
    rig.start_watcher("a")
    await rig.synced("core/configmaps", "core/pods")
    server = rig.clusters["a"]
    server.faults.add(LagWatch(LAG), resource="pods")
    server.create(MAPS, {"metadata": {"name": "m"}}, "default")
    await eventually(lambda: counts[:1] == [0], WITHIN)
    server.patch(MAPS, "default", "m", {"data": {"k": "v"}})
    await eventually(lambda: len(counts) >= 2, WITHIN)
    # The full enqueue of a controller that has just started may add a run.
    assert set(counts[1:]) == {1}
    assert len(server.list(PODS, "default")) == 1
