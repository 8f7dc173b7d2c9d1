"""T7: the example feed-animals in three clusters; the last one joins later."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.reader_groups import durables_of
from fleetbus.controller.controller import Controller
from fleetbus.controller.load import load_controllers
from fleetbus.fleet.fleet import Fleet
from fleetbus.worker.connections import connect
from fleetbus_proto.versions import version_key
from support.eventually import eventually, never
from support.full import FULL
from support.rigs.fleet import Recorder, Rig
from support.rigs.scenario import MAPS, WITHIN, Scenario, access, scenario

OpenRig = Callable[..., Awaitable[Rig]]
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "feed-animals" / "controller.py"
CLUSTERS = {
    "zoo": {"elephant": "animal", "lion": "animal", "keeper": "human"},
    "jungle": {"monkey": "animal", "tree": "thing", "tarzan": "human"},
    "island": {"bird": "animal", "stone": "thing", "crusoe": "human"},
}


def create(rig: Rig, cluster: str, name: str, kind: str) -> None:
    obj = {"metadata": {"name": name, "labels": {"type": kind}}}
    rig.clusters[cluster].create(MAPS, obj, cluster)


def found(rig: Rig, cluster: str, name: str) -> dict[str, Any]:
    obj = rig.clusters[cluster].get(MAPS, cluster, name)
    assert obj is not None
    return obj


def is_fed(rig: Rig, cluster: str, name: str) -> bool:
    return found(rig, cluster, name).get("data") == {"stomach": "food"}


def greetings(rig: Rig, cluster: str) -> dict[str, int]:
    """Return how often each config map of a cluster was greeted; one Event object for each."""
    events = rig.clusters[cluster].list("v1/events", cluster)
    assert {(event["type"], event["reason"]) for event in events} <= {("Normal", "ConfigMapFound")}
    assert all(cluster in event["message"] for event in events)
    names = [event["involvedObject"]["name"] for event in events]
    assert len(set(names)) == len(names)
    return {event["involvedObject"]["name"]: event["count"] for event in events}


@asynccontextmanager
async def a_fleet(rig: Rig) -> AsyncGenerator[Fleet]:
    """The fleet as one more process sees it."""
    async with connect(rig.shared, name="reader") as connections:
        following = asyncio.create_task(connections.clusters.run(), name="reader")
        await connections.clusters.known()
        try:
            yield connections.fleet
        finally:
            following.cancel()
            await asyncio.wait({following})


async def humans(fleet: Fleet, clusters: list[str] | None = None) -> set[tuple[str, str]]:
    listed = await fleet.list(MAPS, clusters=clusters, selector="type=human")
    return {(item.cluster, item.object["metadata"]["name"]) for item in listed}


@asynccontextmanager
async def started(rig: Rig, access_file: pathlib.Path) -> AsyncGenerator[tuple[Scenario, Fleet]]:
    """Everything runs; zoo and jungle are in the fleet, island is not yet."""
    for cluster, animals in CLUSTERS.items():
        rig.clusters[cluster].create("v1/namespaces", {"metadata": {"name": cluster}})
        for name, kind in animals.items():
            create(rig, cluster, name, kind)
    access_file.write_text(json.dumps(access(rig, "zoo", "jungle")))
    recorder = Recorder(Controller("recorder"), MAPS)
    recorder.controller.watch(MAPS)
    async with scenario(rig) as story:
        story.use({"type": "kubeconfig", "paths": [str(access_file)]})
        story.recorders = [recorder]
        rig.start_reconciler(recorder.controller, *load_controllers([str(EXAMPLE)]))
        await story.start_pool()
        async with a_fleet(rig) as fleet:
            yield story, fleet
        await rig.aclose()


def version_of(obj: dict[str, Any] | None) -> str:
    return str(obj["metadata"]["resourceVersion"]) if obj else ""


async def converged(story: Scenario) -> None:
    """Wait until the feeder has seen the last change of every config map, and has no work left."""
    rig, recorder = story.rig, story.recorders[0]

    def is_published() -> bool:
        """The recorder has it from the stream that the feeder reads, too."""
        return all(
            version_of(recorder.of(cluster, cluster, obj["metadata"]["name"])[-1].object)
            == version_of(obj)
            for cluster in CLUSTERS
            for obj in rig.clusters[cluster].list(MAPS, cluster)
        )

    async def is_taken(bus: Bus) -> bool:
        names = await durables_of(bus, "feed-animals")
        infos = [await consumer_info(bus, name) for name in names]
        left = [info["num_pending"] + info["num_ack_pending"] for info in infos if info]
        return left == [0]

    await eventually(is_published, WITHIN)
    async with connected(rig.shared.nats_url, name="looker") as bus:
        await eventually(lambda: is_taken(bus), WITHIN)
    await rig.quiet("feed-animals")


@pytest.mark.full  # its example has a test that always runs
async def test_t7_all_animals_are_fed_all_config_maps_greeted_and_then_nobody_writes(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig(*CLUSTERS)
    access_file = tmp_path / "access"
    async with started(rig, access_file) as (story, fleet):
        await eventually(lambda: is_fed(rig, "zoo", "lion"), WITHIN)
        await story.synced("zoo", "jungle")
        assert await humans(fleet) == {("zoo", "keeper"), ("jungle", "tarzan")}
        access_file.write_text(json.dumps(access(rig, *CLUSTERS)))
        animals = [("zoo", "elephant"), ("jungle", "monkey"), ("island", "bird")]
        for cluster, name in animals:
            await eventually(lambda c=cluster, n=name: is_fed(rig, c, n), WITHIN)
        await story.synced(*CLUSTERS)
        await eventually(lambda: fleet.has("island"), WITHIN)
        assert await humans(fleet, ["island"]) == {("island", "crusoe")}
        assert await humans(fleet) == {
            ("zoo", "keeper"),
            ("jungle", "tarzan"),
            ("island", "crusoe"),
        }

        create(rig, "zoo", "tiger", "animal")
        await eventually(lambda: is_fed(rig, "zoo", "tiger"), WITHIN)
        emptied = rig.clusters["zoo"].patch(MAPS, "zoo", "elephant", {"data": None})
        await eventually(lambda: is_fed(rig, "zoo", "elephant"), WITHIN)
        fed = found(rig, "zoo", "elephant")
        assert version_key(version_of(fed)) > version_key(version_of(emptied))

        for cluster, all_in in CLUSTERS.items():
            expected = {*all_in, "tiger"} if cluster == "zoo" else set(all_in)
            await eventually(lambda c=cluster, w=expected: greetings(rig, c).keys() == w, WITHIN)
            for name, kind in all_in.items():
                assert is_fed(rig, cluster, name) is (kind == "animal")
        assert greetings(rig, "zoo")["elephant"] > 1
        await converged(story)
        before = len(story.writes())
        await story.close()  # nobody writes any more
        if FULL:
            await never(lambda: story.writes()[before:], timedelta(seconds=60))
        assert story.writes()[before:] == []
