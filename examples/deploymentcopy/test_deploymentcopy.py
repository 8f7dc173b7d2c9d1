"""Runs the example: scenario T2 in short; tests/scenarios has it whole."""

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from fleetbus.controller.load import load_controllers
from support.eventually import eventually
from support.rigs.fleet import Rig

CONTROLLER = pathlib.Path(__file__).with_name("controller.py")
DEPLOYMENTS = "apps/v1/deployments"
WEB = {
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        },
    },
}


async def test_the_example_copies_a_deployment_and_takes_the_copy_away_again(
    open_rig: Callable[..., Awaitable[Rig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEETBUS_EXAMPLE_SOURCE", raising=False)
    monkeypatch.delenv("FLEETBUS_EXAMPLE_DESTINATION", raising=False)
    rig = await open_rig("cluster1", "cluster2")
    source, destination = rig.clusters["cluster1"], rig.clusters["cluster2"]
    rig.start_reconciler(*load_controllers([str(CONTROLLER)]))
    rig.start_watcher("cluster1")
    rig.start_watcher("cluster2")
    source.create(DEPLOYMENTS, WEB, "default")
    await eventually(
        lambda: destination.get(DEPLOYMENTS, "default", "web") is not None, timedelta(seconds=10)
    )
    source.delete(DEPLOYMENTS, "default", "web")
    await eventually(
        lambda: destination.get(DEPLOYMENTS, "default", "web") is None, timedelta(seconds=10)
    )
