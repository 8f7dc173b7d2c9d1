"""Runs the example: scenario T7 in short."""

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from fleetbus.controller.load import load_controllers
from support.eventually import eventually
from support.rigs.fleet import Rig

CONTROLLER = pathlib.Path(__file__).with_name("controller.py")
MAPS = "v1/configmaps"
WITHIN = timedelta(seconds=10)


async def test_the_example_feeds_the_animals_of_every_cluster_and_greets_all(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    rig = await open_rig("zoo", "island", resources=(MAPS,))
    rig.start_reconciler(*load_controllers([str(CONTROLLER)]))
    rig.start_watcher("zoo")
    rig.start_watcher("island")
    for cluster, name, kind in (("zoo", "lion", "animal"), ("island", "stone", "thing")):
        metadata = {"name": name, "labels": {"type": kind}}
        rig.clusters[cluster].create(MAPS, {"metadata": metadata}, "default")

    def seen(cluster: str) -> dict[str, str]:
        events = rig.clusters[cluster].list("v1/events", "default")
        return {event["involvedObject"]["name"]: event["message"] for event in events}

    def data(cluster: str, name: str) -> dict[str, Any] | None:
        config_map = rig.clusters[cluster].get(MAPS, "default", name)
        return config_map and config_map.get("data")

    await eventually(lambda: data("zoo", "lion") == {"stomach": "food"}, WITHIN)
    await eventually(lambda: seen("zoo").get("lion") == "found lion in zoo", WITHIN)
    await eventually(lambda: seen("island").get("stone") == "found stone in island", WITHIN)
    assert data("island", "stone") is None
