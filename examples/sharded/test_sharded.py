"""Runs the example without waiting for its timers; the replicas are shown by scenario T11."""

import pathlib
from datetime import timedelta

import pytest

from fleetbus.controller.load import load_controllers
from fleetbus.testing import controller_test

CONTROLLER = pathlib.Path(__file__).with_name("controller.py")
MAPS = "v1/configmaps"


async def test_every_animal_is_fed_each_two_seconds_until_it_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICA", "r-0")
    (keeper,) = load_controllers([str(CONTROLLER)])
    async with controller_test(keeper, clusters=["zoo", "jungle"]) as t:
        for cluster, name in (("zoo", "lion"), ("jungle", "monkey")):
            animal = {"metadata": {"name": name, "labels": {"kind": "animal"}}}
            t.clusters[cluster].create(MAPS, animal, "default")
        t.clusters["zoo"].create(MAPS, {"metadata": {"name": "map"}}, "default")
        await t.advance(timedelta(seconds=9))
        fed = [f"{run.request.cluster} / {run.request.name}" for run in t.requests]
        assert sorted(fed) == ["jungle / monkey"] * 5 + ["zoo / lion"] * 5
        t.clusters["zoo"].delete(MAPS, "default", "lion")
        await t.run_until_idle()
        assert "r-0: zoo / lion is gone" in capsys.readouterr().out
        assert t.writes == []
