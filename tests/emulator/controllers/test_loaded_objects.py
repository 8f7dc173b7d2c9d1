"""Loaded objects: they stay as they are until something changes them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from emulator.support.sim_rig import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    job,
    live,
    workload,
)
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import AdminClient, AdminError, serve_admin
from fleetbus_emulator.controllers import Simulator, simulate
from fleetbus_emulator.controllers.runtime.view import View
from fleetbus_emulator.fleet import emulated_fleet
from fleetbus_emulator.loading import Loaded, load_objects, load_routes, run_controllers

JsonObject = dict[str, Any]
MAPS = "v1/configmaps"
WIDGETS = "example.com/v1/widgets"
FIRST = (NAMESPACES, "apiextensions.k8s.io/v1/customresourcedefinitions")


def definition() -> JsonObject:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def everything(cluster: Cluster) -> list[tuple[str, JsonObject]]:
    """All objects as a watcher passes them on; definitions first, dependents before owners."""
    view = View()
    view.load(cluster)
    objects = [(view.gvr(ref), copy.deepcopy(view[ref])) for ref in view]
    for _, obj in objects:
        obj["metadata"].pop("managedFields", None)
    objects.sort(key=lambda item: (item[0] not in FIRST, item[0] != PODS, item[0] != REPLICA_SETS))
    return objects


def content(cluster: Cluster) -> dict[str, JsonObject]:
    def bare(obj: JsonObject) -> JsonObject:
        meta = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
        return {**obj, "metadata": meta}

    return {obj["metadata"]["uid"]: bare(obj) for _, obj in everything(cluster)}


async def grown() -> Cluster:
    """A cluster in the middle of its life: Deployments rolled out, one that fails, a Job."""
    cluster = Cluster("old")
    async with simulate(cluster, seed=1) as (simulator,):
        cluster.create(DEPLOYMENTS, workload("web", replicas=3))
        cluster.create(DEPLOYMENTS, workload("sick", image="sim.fleetbus.dev/crash-loop"))
        cluster.create(STATEFUL_SETS, workload("db", replicas=2))
        cluster.create(DAEMON_SETS, workload("agent"))
        cluster.create(JOBS, job("j"))
        cluster.create(FIRST[1], definition())
        await simulator.settled()
        cluster.create(WIDGETS, {"metadata": {"name": "w"}}, "default")
        cluster.patch(DEPLOYMENTS, "default", "web", {"metadata": {"labels": {"v": "2"}}})
        await simulator.settled()
    return cluster


async def test_what_is_loaded_stays_as_it_was_and_comes_to_life_when_touched():
    old, new = await grown(), Cluster("new")
    async with simulate(new, seed=1, nodes=0) as (simulator,):
        await simulator.settled()
        simulator.load(everything(old))
        loaded = new.resource_version
        await simulator.settled()
        assert new.resource_version == loaded, list(new.history)[-1]
        before, after = content(old), content(new)
        assert {uid: after[uid] for uid in before} == before

        first = new.list(PODS, labels="app=web")[0]["metadata"]["name"]
        new.delete(PODS, "default", first, grace=0)
        new.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": 4}})
        await simulator.settled()
        pods = [pod["metadata"]["name"] for pod in new.list(PODS, labels="app=web")]
        assert (len(pods), first in pods) == (4, False)
        assert len(new.list(REPLICA_SETS, labels="app=web")) == 1, "the template is the same"
        assert live(new, DEPLOYMENTS, "web")["status"]["readyReplicas"] == 4
        assert len(new.list(PODS, labels="app=db")) == 2


def test_an_emulated_cluster_takes_complete_objects():
    owner = {"metadata": {"name": "o", "namespace": "default", "uid": "1"}, "status": {"a": 1}}
    with emulated_fleet(["alpha"]) as fleet:
        assert fleet["alpha"].restore([(PODS, owner), (MAPS, owner)]) == 2
        fleet["alpha"].settle()
        live_pod = fleet["alpha"].get(PODS, "default", "o")
    assert live_pod is not None
    assert (live_pod["metadata"]["uid"], live_pod["status"]) == ("1", {"a": 1})


# --- over HTTP ------------------------------------------------------------------------------------


@asynccontextmanager
async def served() -> AsyncGenerator[tuple[Cluster, Simulator, AdminClient]]:
    cluster = Cluster("alpha")
    async with serve([cluster]) as servers, simulate(cluster) as simulators:
        routes = load_routes(simulators)
        async with serve_admin(servers, more=routes) as url, AdminClient(url) as admin:
            yield cluster, simulators[0], admin


async def lines_of(objects: Iterable[Any]) -> AsyncIterator[bytes]:
    for item in objects:
        raw = (
            item if isinstance(item, bytes) else orjson.dumps({"type": item[0], "object": item[1]})
        )
        yield raw + b"\n"


async def load(admin: AdminClient, objects: Iterable[Any], cluster: str = "alpha") -> Loaded:
    return [progress async for progress in load_objects(admin, cluster, lines_of(objects))][-1]


def config(name: str, namespace: str = "default") -> tuple[str, JsonObject]:
    return MAPS, {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}}


async def test_objects_are_loaded_over_http_and_what_cannot_be_is_counted():
    default = (NAMESPACES, {"metadata": {"name": "default", "uid": "of-the-old"}})
    other = ("example.com/v1/gadgets", {"metadata": {"name": "g", "namespace": "default"}})
    async with served() as (cluster, simulator, admin):
        many = [config(f"c{number}") for number in range(600)]
        loaded = await load(admin, [default, *many, other, config("x", "nowhere"), config("c1")])
        await simulator.settled()
        assert loaded.types == {NAMESPACES: 1, MAPS: 601}
        assert loaded.not_served == {"example.com/v1/gadgets": 1}
        assert (loaded.refused_count, loaded.refused) == (1, ['namespaces "nowhere" not found'])
        assert live(cluster, MAPS, "c599")["metadata"]["uid"] == "uid-c599"
        namespace = cluster.get(NAMESPACES, None, "default")
        assert namespace is not None
        assert namespace["metadata"]["uid"] == "of-the-old"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "alpha: line: is no JSON"),
        (b"[]", "alpha: line: must be an object with the fields type and object"),
        (b'{"object": {}}', "alpha: type: must be a type"),
        (b'{"type": "v1/pods", "object": {}}', "alpha: object: must be an object with metadata"),
    ],
)
async def test_a_line_that_is_no_object_ends_a_load(line: bytes, message: str):
    async with served() as (cluster, _, admin):
        with pytest.raises(AdminError, match=message):
            await load(admin, [config("a"), line, config("b")])
        assert cluster.get(MAPS, "default", "b") is None
        with pytest.raises(AdminError, match="there is no cluster 'beta', only alpha"):
            await load(admin, [config("a")], "beta")


async def test_controllers_of_a_cluster_can_be_paused():
    async with served() as (cluster, simulator, admin):
        await simulator.settled()
        await run_controllers(admin, "alpha", running=False)
        cluster.create(DEPLOYMENTS, workload("web"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await simulator.settled()
        assert cluster.list(REPLICA_SETS) == []
        await run_controllers(admin, "alpha", running=True)
        await simulator.settled()
        assert live(cluster, DEPLOYMENTS, "web")["status"]["readyReplicas"] == 1
        with pytest.raises(AdminError, match="running: must be true or false"):
            await admin.change("alpha", "controllers", {"running": "no"})
