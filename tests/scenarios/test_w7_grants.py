"""W7 with real watchers and a real projector: few lists at once, over restarts and deaths."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from fleetbus_emulator.apiserver import Hang
from support.eventually import eventually, stays
from support.objects import pod
from support.processes.programs import installed
from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"


def lists(rig: Rig) -> int:
    """Return how many lists the API servers were asked for, all clusters together."""
    requests = (request for cluster in rig.clusters.values() for request in cluster.requests)
    return sum(request.verb == "list" for request in requests)


async def test_w7_few_lists_run_at_once_also_when_the_projector_restarts_meanwhile(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b", "c", "d")
    for cluster in rig.clusters.values():
        cluster.faults.add(Hang(), verb="list")
    rig.start_reconciler(epochs_at_once=3)
    await eventually(rig.reader.generation)
    for name in rig.clusters:
        rig.start_watcher(name)
    await eventually(lambda: lists(rig) == 3)
    await rig.stop_reconciler()
    rig.start_reconciler(epochs_at_once=3)
    await stays(3, lambda: lists(rig), timedelta(seconds=0.5))  # the standing grants are kept


@pytest.mark.full  # test_granter of the reconciler has it
async def test_w7_a_watcher_killed_while_it_lists_holds_up_the_others_only_for_a_time(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b", resources=(PODS,))
    hanging = rig.clusters["a"].faults.add(Hang(), verb="list")
    rig.clusters["b"].create(PODS, pod("p1"), "default")
    rig.start_reconciler(epochs_at_once=1, epoch_idle=timedelta(seconds=1.5))
    async with process(rig, "a") as child:
        await eventually(lambda: hanging.hits)
        rig.start_watcher("b")
        await stays(1, lambda: lists(rig), timedelta(seconds=0.2))
        child.kill()
        await child.wait()
    await eventually(lambda: lists(rig) == 2)


@asynccontextmanager
async def process(rig: Rig, cluster: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A watcher as a process of its own."""
    child = await asyncio.create_subprocess_exec(
        *installed("fleetbus-watcher", "--cluster", cluster, "--context", cluster),
        *("--kubeconfig", str(rig.kubeconfig)),
        env=os.environ
        | {
            "FLEETBUS_NATS_URL": rig.shared.nats_url,
            "FLEETBUS_WATCHER_RESOURCES": f'["{PODS}"]',
        },
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
