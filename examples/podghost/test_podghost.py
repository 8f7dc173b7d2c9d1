"""Runs the example: scenario T3 in short; tests/scenarios has it whole."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from fleetbus.controller.load import load_controllers
from fleetbus.testing import controller_test

FOLDER = pathlib.Path(__file__).parent
CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
GHOSTS = "examples.fleetbus.dev/v1alpha1/podghosts"
POD: Mapping[str, Any] = {
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "web", "image": "nginx"}]},
}


async def test_the_example_keeps_a_ghost_for_a_pod_and_takes_it_away_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLEETBUS_EXAMPLE_SOURCES", raising=False)
    monkeypatch.delenv("FLEETBUS_EXAMPLE_DESTINATION", raising=False)
    controllers = load_controllers([str(FOLDER / "controller.py")])
    async with controller_test(*controllers, clusters=["cluster1", "cluster2"]) as t:
        living, beyond = t.clusters["cluster1"], t.clusters["cluster2"]
        beyond.create(CRDS, yaml.safe_load((FOLDER / "crd.yaml").read_text()))
        living.create("v1/pods", dict(POD), "default")
        await t.run_until_idle()
        ghosts = beyond.list(GHOSTS, "default")
        assert [ghost["spec"]["name"] for ghost in ghosts] == ["web"]
        assert ghosts[0]["metadata"]["name"].startswith("default-web-")
        living.delete("v1/pods", "default", "web")
        await t.run_until_idle()
        assert not beyond.list(GHOSTS, "default")
