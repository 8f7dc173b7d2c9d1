"""The whole path: hub and members, watchers, bus, snapshot, queue, distributor."""

import base64
import copy
import pathlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import orjson
import pytest

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process.settings import ProviderSettings
from fleetbus_distributor.controllers import NAME, TARGETS
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets import memory
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.distributor import CONFIG_MAP
from support.rigs.fleet import Rig, fleet_rig

WITHIN = timedelta(seconds=15)
LONG = timedelta(seconds=60)
"""To list all resources of a cluster, on a busy machine."""
HUB = "t4"
MAPS = "v1/configmaps"


@pytest.fixture
async def rig(tmp_path: pathlib.Path, nats_url: str, valkey_url: str) -> AsyncGenerator[Rig]:
    async with fleet_rig(
        "t1", "t2", HUB, folder=tmp_path, nats_url=nats_url, valkey_url=valkey_url, hub=HUB
    ) as started:
        for definition in crds():
            started.clusters[HUB].create(CRDS, definition)
        yield started


def start(rig: Rig) -> None:
    on_hub = (*rig.resources, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE)
    for name in rig.clusters:
        rig.start_watcher(name, resources=on_hub if name == HUB else rig.resources)
    rig.start_reconciler()
    start_distributor(rig)


def start_distributor(rig: Rig) -> None:
    rig.start("distributor", run_distributor(rig.shared, DistributorSettings()))


def resource(rig: Rig, name: str) -> dict[str, Any]:
    return rig.clusters[HUB].get(MULTI_CLUSTER_RESOURCES, "default", name) or {}


def ours(rig: Rig) -> list[str]:
    """All writes of a distributor."""
    logged = [request for cluster in rig.clusters.values() for request in cluster.requests]
    return [request.path for request in logged if request.field_manager.startswith("fleetbus-")]


def looks(rig: Rig, name: str) -> int:
    """Return how often the MultiClusterResource was read live."""
    paths = [request.path for request in rig.clusters[HUB].requests if request.verb == "get"]
    return sum(path.endswith(f"/multiclusterresources/{name}") for path in paths)


async def test_t18_a_relabelled_cluster_is_noticed_and_a_look_alone_writes_nothing(rig: Rig):
    hub = rig.clusters[HUB]
    hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    for name in ("t1", "t2"):
        join(rig, name)
    shared = rig.shared.model_copy(
        update={"providers": [ProviderSettings.model_validate({"type": "cluster"})]}
    )
    rig.shared = shared
    start(rig)
    spec = {
        "template": copy.deepcopy(CONFIG_MAP),
        "placement": {"clusterSelector": {"matchLabels": {"tier": "prod"}}},
        "policy": {"fuse": {"percent": 50}},
    }
    hub.create(
        MULTI_CLUSTER_RESOURCES, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec}
    )
    await eventually(lambda: "status" in resource(rig, "x"), within=WITHIN)
    for name in ("t1", "t2"):
        hub.patch(CLUSTER_RESOURCE, None, name, {"metadata": {"labels": {"tier": "prod"}}})
        await eventually(
            lambda name=name: rig.clusters[name].get(MAPS, "default", "m"), within=WITHIN
        )
    hub.patch(CLUSTER_RESOURCE, None, "t1", {"metadata": {"labels": {"tier": None}}})
    await eventually(lambda: not rig.clusters["t1"].get(MAPS, "default", "m"), within=WITHIN)
    assert rig.clusters["t2"].get(MAPS, "default", "m")
    await quiet(rig)

    # A look that finds nothing to do writes nothing.
    looked, written = looks(rig, "x"), ours(rig)
    hub.patch(CLUSTER_RESOURCE, None, "t1", {"metadata": {"labels": {"other": "label"}}})
    await eventually(lambda: looks(rig, "x") > looked, within=WITHIN)
    await quiet(rig)
    assert ours(rig) == written


async def test_d11_changes_on_one_cluster_ask_nothing_of_the_others(rig: Rig):
    start(rig)
    names = ("t1", "t2", HUB)
    spec = {
        "template": copy.deepcopy(CONFIG_MAP),
        "placement": {"clusters": [{"name": name} for name in names]},
    }
    rig.clusters[HUB].create(
        MULTI_CLUSTER_RESOURCES, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec}
    )
    for name in names:
        await eventually(
            lambda name=name: rig.clusters[name].get(MAPS, "default", "m"), within=WITHIN
        )
    await quiet(rig)

    def asked(name: str) -> int:
        paths = [request.path for request in rig.clusters[name].requests]
        return sum(path.endswith("/configmaps/m") for path in paths)

    async def is_left_alone() -> bool:
        """Not so while events of their own creation still arrive for the others."""
        before = asked("t2"), asked(HUB)
        for n in range(20):
            foreign = {"metadata": {"annotations": {"foreign": str(n)}}}
            rig.clusters["t1"].patch(MAPS, "default", "m", foreign)
        rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "changed"}})
        await eventually(lambda: data_of(rig, "t1") == CONFIG_MAP["data"], within=WITHIN)
        await quiet(rig)
        return (asked("t2"), asked(HUB)) == before

    await eventually(is_left_alone)
    before = asked("t2"), asked(HUB)
    for _ in range(5):
        rig.clusters["t1"].delete(MAPS, "default", "m")
        await eventually(lambda: data_of(rig, "t1") == CONFIG_MAP["data"], within=WITHIN)
    await quiet(rig)
    assert (asked("t2"), asked(HUB)) == before


@pytest.mark.slow
async def test_p18_what_is_deleted_before_the_first_list_of_its_type_comes_back(rig: Rig):
    rig.start_watcher(HUB, resources=(*rig.resources, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE))
    rig.start_reconciler()
    start_distributor(rig)
    create(rig, CONFIG_MAP, "t1")
    await eventually(lambda: data_of(rig, "t1"), within=WITHIN)
    await eventually(lambda: state_of(rig, "t1") == "Applied", within=WITHIN)
    await quiet(rig)
    rig.clusters["t1"].delete(MAPS, "default", "m")
    rig.start_watcher("t1")
    await eventually(lambda: data_of(rig, "t1"), within=WITHIN)


@pytest.mark.slow
async def test_d9_a_type_that_somebody_else_installs_wakes_those_who_wait_for_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory, "AGAIN", timedelta(minutes=5))
    rig.start_watcher(HUB, resources=(*rig.resources, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE))
    rig.start_watcher("t1", resources=("*",))
    rig.start_reconciler()
    start_distributor(rig)
    metadata = {"name": "main", "namespace": "default"}
    database = {"apiVersion": "example.org/v1", "kind": "Database", "metadata": metadata}
    create(rig, database, "t1")
    await eventually(lambda: state_of(rig, "t1") == "Waiting", within=LONG)
    await quiet(rig)
    definitions = "apiextensions.k8s.io/customresourcedefinitions"

    async def watches_definitions() -> bool:
        return (await rig.reader.freshness(["t1"], definitions))["t1"].is_complete

    await eventually(watches_definitions, within=LONG)
    rig.clusters["t1"].create(CRDS, definition("example.org", "databases", "Database"))
    databases = "example.org/v1/databases"
    await eventually(lambda: rig.clusters["t1"].get(databases, "default", "main"), within=LONG)


def create(rig: Rig, template: dict[str, Any], cluster: str) -> None:
    placement = {"clusters": [{"name": cluster}]}
    spec = {"template": copy.deepcopy(template), "placement": placement}
    metadata = {"name": "x", "namespace": "default"}
    rig.clusters[HUB].create(MULTI_CLUSTER_RESOURCES, {"metadata": metadata, "spec": spec})


def state_of(rig: Rig, cluster: str) -> Any:
    entries = resource(rig, "x").get("status", {}).get("clusters", [])
    return next((entry["state"] for entry in entries if entry["name"] == cluster), "")


def data_of(rig: Rig, cluster: str) -> Any:
    return (rig.clusters[cluster].get(MAPS, "default", "m") or {}).get("data")


async def quiet(rig: Rig) -> None:
    for name in (NAME, TARGETS):
        await rig.quiet(name)


def join(rig: Rig, name: str) -> None:
    kubeconfig = rig.servers.kubeconfig()
    context = {"name": name, "context": {"cluster": name, "user": "devfleet"}}
    cluster = next(entry for entry in kubeconfig["clusters"] if entry["name"] == name)
    document = {**kubeconfig, "current-context": name, "contexts": [context], "clusters": [cluster]}
    secret = {
        "metadata": {
            "name": f"{name}-kubeconfig",
            "namespace": "fleetbus-clusters",
            "labels": {"fleetbus.dev/kubeconfig": "true"},
        },
        "data": {"kubeconfig": base64.b64encode(orjson.dumps(document)).decode()},
    }
    rig.clusters[HUB].create("v1/secrets", secret)
    reference = {"namespace": "fleetbus-clusters", "name": f"{name}-kubeconfig"}
    rig.clusters[HUB].create(
        CLUSTER_RESOURCE, {"metadata": {"name": name}, "spec": {"kubeconfigSecretRef": reference}}
    )
