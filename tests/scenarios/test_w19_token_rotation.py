"""A token in a Secret is rotated late, and the hub does not tell: nothing restarts (rule W19)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.reconcile import Request, Result
from fleetbus_cli.clusters.clusters import show_clusters
from fleetbus_cli.target import ApiFlags
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_emulator.apiserver.faults import DropEvents
from fleetbus_reconciler.timing import ReconcilerTiming
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.fleet import Recorder, Rig
from support.rigs.query_api import served
from support.rigs.scenario import (
    MAPS,
    NAMESPACE,
    SECRETS,
    WITHIN,
    Scenario,
    access,
    encoded,
    scenario,
)
from support.servers.plain_http import http_client

OpenRig = Callable[..., Awaitable[Rig]]
FIRST, SECOND = "first-t0ken", "second-t0ken"
COPY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "copy"}}


class Feeder(Recorder):
    """Writes to each object that it is asked to look at, in its own cluster."""

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        await super()._note(request, fleet)
        if request.cluster == "zoo" and request.name.startswith("cub"):
            patch = {"data": {"stomach": "food"}}
            await fleet.cluster("zoo").patch(MAPS, request.namespace, request.name, patch)
        return None


def put(rig: Rig, name: str, token: str = "") -> None:
    """Write the Secret of a cluster, and its Cluster."""
    hub = rig.clusters["hub"]
    data = {"kubeconfig": encoded(json.dumps(access(rig, name, token=token)))}
    if hub.get(SECRETS, NAMESPACE, name) is not None:
        hub.patch(SECRETS, NAMESPACE, name, {"data": data})
        return
    metadata = {"name": name, "labels": {"fleetbus.dev/kubeconfig": "true"}}
    hub.create(SECRETS, {"metadata": metadata, "data": data}, NAMESPACE)
    resources = [MAPS, *((MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE) if name == "hub" else ())]
    reference = {"namespace": NAMESPACE, "name": name}
    spec = {"kubeconfigSecretRef": reference, "resources": resources}
    hub.create(CLUSTER_RESOURCE, {"metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def started(rig: Rig) -> AsyncGenerator[Scenario]:
    hub = rig.clusters["hub"]
    hub.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for definition in crds():
        hub.create(CRDS, definition)
    put(rig, "hub")
    put(rig, "zoo", FIRST)
    async with scenario(rig) as opened:
        opened.use({"type": "cluster"}, hub="hub")
        feeder = Feeder(Controller("feeder"), MAPS)
        feeder.controller.watch(MAPS)
        opened.start_reconciler(feeder)
        await opened.start_pool()
        rig.start("distributor", run_distributor(rig.shared, DistributorSettings()))
        yield opened
        await rig.aclose()


def spread(rig: Rig, value: str) -> None:
    """Let the distributor write this to the member."""
    hub = rig.clusters["hub"]
    spec = {
        "template": {**COPY, "data": {"k": value}},
        "placement": {"clusters": [{"name": "zoo"}]},
    }
    if hub.get(MULTI_CLUSTER_RESOURCES, "default", "x") is None:
        hub.create(
            MULTI_CLUSTER_RESOURCES,
            {"metadata": {"name": "x", "namespace": "default"}, "spec": spec},
        )
    else:
        hub.patch(MULTI_CLUSTER_RESOURCES, "default", "x", {"spec": spec})


def held(rig: Rig, name: str) -> Any:
    return (rig.clusters["zoo"].get(MAPS, "default", name) or {}).get("data", {})


def connected(rig: Rig) -> tuple[str, str]:
    """Status and reason of the condition."""
    status = (rig.clusters["hub"].get(CLUSTER_RESOURCE, None, "zoo") or {}).get("status", {})
    by_type = {each["type"]: each for each in status.get("conditions", [])}
    condition = by_type.get("Connected", {})
    return condition.get("status", ""), condition.get("reason", "")


@pytest.mark.full  # test_credentials of the watcher and of kube/connection have it
async def test_w19_every_service_reads_the_secret_of_a_refused_token_itself(
    open_rig: OpenRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = await open_rig("hub", "zoo", tokens={"zoo": FIRST})
    rig.reconciler_timing = ReconcilerTiming(cluster_status=timedelta(seconds=0.1))
    zoo, hub = rig.clusters["zoo"], rig.clusters["hub"]
    async with started(rig) as story, served(rig.shared.redis_url, tmp_path) as api:

        async def row() -> list[str]:
            """The member's row in the output of `fleetbus clusters`."""
            capsys.readouterr()
            await asyncio.to_thread(show_clusters, "table", ApiFlags(url=api))
            lines = capsys.readouterr().out.splitlines()
            return next(line for line in lines if line.startswith("zoo")).split()

        spread(rig, "before")
        story.write("zoo", "cub0")
        await eventually(lambda: held(rig, "cub0").get("stomach") == "food", WITHIN)
        await eventually(lambda: held(rig, "copy") == {"k": "before"}, WITHIN)
        await story.synced("zoo")
        await eventually(lambda: connected(rig) == ("True", "Connected"), WITHIN)
        assert (await row())[3] == "yes"
        lists = story.lists_made("zoo")

        hub.faults.add(DropEvents(), resource="secrets")
        zoo.credentials.revoke_token(FIRST)
        zoo.close_watches()
        story.write("zoo", "cub1")
        spread(rig, "after")
        await eventually(lambda: connected(rig) == ("False", "Unauthorized"), WITHIN)
        cells = await row()
        assert (cells[3], "Unauthorized" in " ".join(cells)) == ("no", True), cells
        async with http_client(api) as asking:
            answer = (await asking.get("/fleet/v1/clusters")).json()
        assert not answer["freshness"]["zoo"]["complete"], answer["freshness"]

        zoo.credentials.add_token(SECOND, "somebody")
        put(rig, "zoo", SECOND)
        await eventually(lambda: held(rig, "cub1").get("stomach") == "food", WITHIN)
        await eventually(lambda: held(rig, "copy") == {"k": "after"}, WITHIN)
        await story.synced("zoo")
        await eventually(lambda: connected(rig) == ("True", "Connected"), WITHIN)
        assert (await row())[3] == "yes"
        assert (story.lists_made("zoo"), story.deletions("zoo")) == (lists, [])
        added = [e.name for e in await story.stored("zoo") if e.verb.value == "added"]
        assert added.count("cub1") == 1
