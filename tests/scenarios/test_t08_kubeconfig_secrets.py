"""T8: clusters from kubeconfig Secrets of the hub, with T7's feeder; nothing is restarted.

What the query API would answer is read from the snapshot that it serves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from fleetbus.bus.connection import connected
from fleetbus.bus.key_value import KeyValue
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus.watchers.cluster_consent import consent
from fleetbus_proto.subjects import Verb
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually, never
from support.rigs.fleet import Recorder, Rig
from support.rigs.scenario import (
    MAPS,
    NAMESPACE,
    QUIET,
    SECRETS,
    WITHIN,
    Scenario,
    access,
    encoded,
    scenario,
)

OpenRig = Callable[..., Awaitable[Rig]]
OURS = "fleetbus.dev/kubeconfig"
THEIRS = "sigs.k8s.io/multicluster-runtime-kubeconfig"
FIRST, SECOND = "first-t0ken", "second-t0ken"
log = structlog.get_logger()


class Feeder(Recorder):
    """Feeds every animal, in its own cluster."""

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        await super()._note(request, fleet)
        config_map = self.of(request.cluster, request.namespace, request.name)[-1].object or {}
        is_animal = config_map.get("metadata", {}).get("labels", {}).get("type") == "animal"
        if is_animal and config_map.get("data", {}).get("stomach") != "food":
            log.info("feeds")
            patch = {"data": {"stomach": "food"}}
            cluster = fleet.cluster(request.cluster)
            await cluster.patch(MAPS, request.namespace, request.name, patch)
        return None


@asynccontextmanager
async def started(rig: Rig) -> AsyncGenerator[Scenario]:
    rig.clusters["hub"].create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    async with scenario(rig) as opened:
        opened.use({"type": "secrets", "namespace": NAMESPACE}, hub="hub")
        feeder = Feeder(Controller("feeder"), MAPS)
        feeder.controller.watch(MAPS)
        opened.start_reconciler(feeder)
        await opened.start_pool()
        yield opened
        await rig.aclose()


def put(story: Scenario, name: str, document: Any, label: str = OURS) -> None:
    """Write the Secret of a cluster."""
    hub = story.rig.clusters["hub"]
    data = {"kubeconfig": encoded(json.dumps(document))}
    if hub.get(SECRETS, NAMESPACE, name) is None:
        metadata = {"name": name, "labels": {label: "true"}}
        hub.create(SECRETS, {"metadata": metadata, "data": data}, NAMESPACE)
    else:
        hub.patch(SECRETS, NAMESPACE, name, {"data": data})


def is_fed(story: Scenario, server: str, name: str) -> bool:
    config_map = story.rig.clusters[server].get(MAPS, "default", name) or {}
    return config_map.get("data", {}).get("stomach") == "food"


@pytest.mark.slow
async def test_t8_secrets_come_are_annotated_break_and_go(open_rig: OpenRig) -> None:
    rig = await open_rig("hub", "zoo", "jungle", "island", "meadow")
    rig.reconciler_timing = ReconcilerTiming(cluster_status=timedelta(seconds=0.1))
    async with started(rig) as story:
        hub, meadow = rig.clusters["hub"], rig.clusters["meadow"]
        for server, animal in (("zoo", "lion"), ("jungle", "monkey"), ("island", "bird")):
            story.write(server, animal, type="animal")
            put(story, server, access(rig, server), THEIRS if server == "zoo" else OURS)
        story.write("meadow", "cow", type="animal")
        await eventually(lambda: is_fed(story, "zoo", "lion"), WITHIN)
        await eventually(lambda: is_fed(story, "jungle", "monkey"), WITHIN)
        await eventually(lambda: is_fed(story, "island", "bird"), WITHIN)
        assert {event.cluster for event in story.events} == {"zoo", "jungle", "island"}

        put(story, "meadow", access(rig, "meadow"))
        await eventually(lambda: is_fed(story, "meadow", "cow"), WITHIN)
        opened = story.watches_opened("jungle")
        hub.patch(SECRETS, NAMESPACE, "jungle", {"metadata": {"annotations": {"a": "b"}}})
        story.write("jungle", "leopard", type="animal")
        await eventually(lambda: is_fed(story, "jungle", "leopard"), WITHIN)

        hub.patch(SECRETS, NAMESPACE, "zoo", {"metadata": {"labels": {THEIRS: None}}})
        await leaves_with_a_full_queue(story)
        await eventually(lambda: story.are_members("jungle", "island"), WITHIN)
        await eventually(lambda: not rig.clusters["zoo"].open_watches, WITHIN)
        assert not meadow.open_watches

        for name, data in (("odd", {"some-other-key": "eA=="}), ("empty", {"kubeconfig": ""})):
            metadata = {"name": name, "labels": {OURS: "true"}}
            hub.create(SECRETS, {"metadata": metadata, "data": data}, NAMESPACE)
        for name in ("odd", "empty"):
            await eventually(lambda name=name: has_problem(story, name), WITHIN)
        await story.close()
        assert await story.are_members("jungle", "island", "odd", "empty")
        assert story.watches_opened("jungle") == opened
        assert not story.deletions()


async def leaves_with_a_full_queue(story: Scenario) -> None:
    """The cluster of a deleted Secret leaves, and its queued requests with it, without an error."""
    feeder, meadow = story.recorders[0], story.rig.clusters["meadow"]
    feeder.pause = 0.2
    for number in range(40):
        story.write("meadow", f"calf{number}")
    objects = meadow.list(MAPS)
    await eventually(lambda: sum(r.request.cluster == "meadow" for r in feeder.runs) > 2, WITHIN)
    story.rig.clusters["hub"].delete(SECRETS, NAMESPACE, "meadow")
    await eventually(lambda: not meadow.open_watches, WITHIN)
    await eventually(lambda: not tasks_of("meadow"), WITHIN)
    feeder.pause = 0
    assert meadow.list(MAPS) == objects


def tasks_of(cluster: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if cluster in task.get_name()]


async def has_problem(story: Scenario, name: str) -> bool:
    record = await story.record(name)
    return bool(record.reason) and not record.connected


@pytest.mark.slow
async def test_t8_another_server_another_credential_another_cluster(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("hub", "zoo", "jungle", "island", "desert", tokens={"zoo": FIRST})
    rig.reconciler_timing = ReconcilerTiming(cluster_status=timedelta(seconds=0.1))
    async with started(rig) as story:
        for server, animal in (("zoo", "lion"), ("jungle", "monkey"), ("island", "bird")):
            story.write(server, animal, type="animal")
        for number in range(3):
            story.write("desert", f"stone{number}")
        for server in ("zoo", "jungle", "island", "desert"):
            put(story, server, access(rig, server, token=FIRST))
        await story.synced("zoo", "jungle", "island", "desert")
        await eventually(lambda: is_fed(story, "zoo", "lion"), WITHIN)
        await eventually(lambda: is_fed(story, "island", "bird"), WITHIN)
        async with asyncio.TaskGroup() as group:
            for step in (leads_elsewhere, rotates, is_replaced):
                group.create_task(step(story))
        await story.close(errors=["cluster_replaced"], secrets=[FIRST, SECOND])


async def leads_elsewhere(story: Scenario) -> None:
    """An edited address is followed, and two names of one server are reported on both."""
    put(story, "island", access(story.rig, island="jungle"))
    story.write("jungle", "dog", type="animal")
    await eventually(lambda: is_fed(story, "jungle", "dog"), WITHIN)
    await eventually(lambda: not story.rig.clusters["island"].open_watches, WITHIN)

    async def is_right() -> bool:
        return await story.rows("island") == await story.rows("jungle") == {"monkey", "dog"}

    await eventually(is_right, WITHIN)
    await eventually(lambda: (aliases("island"), aliases("jungle")) == (1, 1), WITHIN)
    reported = {(line["cluster"], *line["others"]) for line in story.lines("cluster_has_two_names")}
    assert reported == {("island", "jungle"), ("jungle", "island")}


def aliases(cluster: str) -> float | None:
    return REGISTRY.get_sample_value("fleetbus_cluster_aliases", {"cluster": cluster})


async def rotates(story: Scenario) -> None:
    """New credentials cost neither a change nor a list."""
    zoo, recorder = story.rig.clusters["zoo"], story.recorders[0]
    lists = story.lists_made("zoo")
    written: list[str] = []
    is_over = asyncio.Event()

    async def write() -> None:
        while not is_over.is_set():
            written.append(f"cub{len(written)}")
            story.write("zoo", written[-1])
            await asyncio.sleep(0.02)  # the pace of the load

    async def look() -> None:
        while not is_over.is_set():
            assert "lion" in await story.rows("zoo"), "a row disappeared"
            await asyncio.sleep(0.01)  # between two looks

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        group.create_task(look())
        zoo.credentials.add_token(SECOND, "somebody")
        put(story, "zoo", access(story.rig, "zoo", token=SECOND))
        await eventually(lambda: story.lives("zoo") == 2, WITHIN)
        await eventually(lambda: zoo.open_watches == 1, WITHIN)
        zoo.credentials.revoke_token(FIRST)
        await asyncio.sleep(0.1)  # the load goes on
        is_over.set()
    await eventually(lambda: all(recorder.of("zoo", "default", n) for n in written), WITHIN)
    added = [e.name for e in await story.stored("zoo") if e.verb is Verb.ADDED]
    assert sorted(added) == sorted(written), "not each change is on the stream, once"
    assert story.lists_made("zoo") == lists
    assert not story.deletions("zoo")


async def is_replaced(story: Scenario) -> None:
    """Another cluster behind unchanged access data is named, and nothing of it is used."""
    stones = {"stone0", "stone1", "stone2"}
    uid = story.rig.clusters["desert"].swap_uid()
    story.rig.clusters["desert"].close_watches()
    story.rig.clusters["desert"].delete(MAPS, "default", "stone0")

    async def shows(reason: str) -> bool:
        record = await story.record("desert")
        return record.reason == reason and record.connected == (not reason)

    await eventually(lambda: shows("ClusterReplaced"), WITHIN)
    await never(lambda: story.deletions("desert"), QUIET)
    assert await story.rows("desert") == stones
    async with connected(story.rig.shared.nats_url, name="operator") as bus:
        await consent(bus, KeyValue(bus), "desert", uid)
    await eventually(lambda: shows(""), WITHIN)

    async def holds_the_new() -> bool:
        return await story.rows("desert") == stones - {"stone0"}

    await eventually(holds_the_new, WITHIN)
