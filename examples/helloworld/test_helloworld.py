"""Runs the example: scenario T1 in short."""

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from fleetbus.controller.load import load_controllers
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig

CONTROLLER = pathlib.Path(__file__).with_name("controller.py")


async def test_the_example_greets_every_pod_of_every_cluster_and_sees_it_go(
    open_rig: Callable[..., Awaitable[Rig]], capfd: pytest.CaptureFixture[str]
) -> None:
    rig = await open_rig("cluster1", "cluster2")
    rig.clusters["cluster1"].create("v1/pods", pod("one"), "default")
    rig.clusters["cluster2"].create("v1/pods", pod("two"), "default")
    rig.start_reconciler(*load_controllers([str(CONTROLLER)]))
    rig.start_watcher("cluster1")
    rig.start_watcher("cluster2")
    outputs: list[str] = []

    def has_said(line: str) -> bool:
        outputs.append(capfd.readouterr().out)
        return line in "".join(outputs)

    await eventually(lambda: has_said("cluster1 / default / one: Pending"), timedelta(seconds=10))
    await eventually(lambda: has_said("cluster2 / default / two: Pending"), timedelta(seconds=10))
    rig.clusters["cluster2"].delete("v1/pods", "default", "two")
    await eventually(lambda: has_said("cluster2 / default / two: gone"), timedelta(seconds=10))
