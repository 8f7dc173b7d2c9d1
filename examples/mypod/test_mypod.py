"""Runs the example: apply, drift, stop the distributor, delete."""

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import yaml

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES as RESOURCE
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.settings import DistributorSettings
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.fleet import Rig

HERE = pathlib.Path(__file__).parent
WITHIN = timedelta(seconds=15)
HUB = "t4"
PODS, MAPS = "v1/pods", "v1/configmaps"
NAMES = ["myconfigmap.configmap", "mydeployment.deployment", "mypod.pod"]


async def start(open_rig: Callable[..., Awaitable[Rig]]) -> Rig:
    rig = await open_rig("t1", "t2", HUB, hub=HUB)
    hub = rig.clusters[HUB]
    for definition in crds():
        hub.create(CRDS, definition)
    for name in rig.clusters:
        watched = (*rig.resources, RESOURCE) if name == HUB else rig.resources
        rig.start_watcher(name, resources=watched)
    rig.start_reconciler()
    start_distributor(rig)
    for path in sorted(HERE.glob("*.yaml")):
        hub.create(RESOURCE, yaml.safe_load(path.read_text(encoding="utf-8")))
    return rig


def start_distributor(rig: Rig) -> None:
    rig.start("distributor", run_distributor(rig.shared, DistributorSettings()))


def is_applied(rig: Rig, name: str) -> bool:
    status = (rig.clusters[HUB].get(RESOURCE, "default", name) or {}).get("status", {})
    return status.get("summary", {}).get("applied") == 3


def pod(rig: Rig, cluster: str) -> dict[str, Any] | None:
    return rig.clusters[cluster].get(PODS, "default", "multicluster-pod")


async def test_the_example_is_applied_repaired_and_taken_away(
    open_rig: Callable[..., Awaitable[Rig]],
):
    rig = await start(open_rig)
    await eventually(lambda: all(is_applied(rig, name) for name in NAMES), within=WITHIN)
    first = pod(rig, "t2")
    assert first is not None
    assert first["metadata"]["annotations"]["example"] == "example"

    # The distributor applies at once, perhaps before the cluster was listed for the first time.
    await rig.synced("core/pods", "core/configmaps")
    t2 = rig.clusters["t2"]
    t2.delete(PODS, "default", "multicluster-pod", grace=0)

    def is_back() -> bool:
        current = pod(rig, "t2")
        return current is not None and current["metadata"]["uid"] != first["metadata"]["uid"]

    await eventually(is_back, within=WITHIN)
    name = "multiclusterresource-configmap"
    t2.patch(MAPS, "default", name, {"data": {"example.property.1": "changed"}})

    def is_restored() -> bool:
        config_map = t2.get(MAPS, "default", name)
        return config_map is not None and config_map["data"]["example.property.1"] == "hello"

    await eventually(is_restored, within=WITHIN)

    # A distributor that was down meanwhile finds out what it missed.
    await rig.stop("distributor")
    rig.clusters[HUB].delete(RESOURCE, "default", "mypod.pod")
    start_distributor(rig)
    hub = rig.clusters[HUB]
    await eventually(lambda: not hub.get(RESOURCE, "default", "mypod.pod"), within=WITHIN)
    assert not any(pod(rig, cluster) for cluster in rig.clusters)
