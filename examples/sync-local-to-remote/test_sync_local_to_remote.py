"""Runs the example: scenario T10 in short; tests/scenarios has it whole."""

import pathlib

import pytest

from fleetbus.controller.load import load_controllers
from fleetbus.testing import controller_test

CONTROLLER = pathlib.Path(__file__).with_name("controller.py")
MAPS = "v1/configmaps"


async def test_the_example_copies_to_all_members_reverts_them_and_cleans_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLEETBUS_EXAMPLE_HUB", raising=False)
    controllers = load_controllers([str(CONTROLLER)])
    async with controller_test(*controllers, clusters=["cluster1", "cluster2", "cluster3"]) as t:
        hub, *members = (t.clusters[name] for name in ("cluster1", "cluster2", "cluster3"))
        metadata = {"name": "hello", "labels": {"example.io/propagate": "true"}}
        hub.create(MAPS, {"metadata": metadata, "data": {"hello": "world"}}, "default")
        await t.run_until_idle()
        members[0].patch(MAPS, "default", "hello", {"data": {"hello": "hopper"}})
        await t.run_until_idle()
        for member in members:
            copy = member.get(MAPS, "default", "hello")
            assert copy is not None
            assert copy["data"] == {"hello": "world"}
        hub.delete(MAPS, "default", "hello")
        await t.run_until_idle()
        assert [member.get(MAPS, "default", "hello") for member in members] == [None, None]
