"""A watcher with the account that a join made for it."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config, read_upload
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_cli.bootstrap.enroll import enroll
from fleetbus_cli.bootstrap.options import BootstrapOptions
from fleetbus_emulator.apiserver import User
from fleetbus_proto.events import Heartbeat
from fleetbus_watcher.main import run
from fleetbus_watcher.settings import WatcherSettings
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.watcher import QUICK, read_stream

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

WATCHED = {"deployments", "pods"}


@pytest.mark.fleet(
    ["hub", "eu1"],
    workloads=False,
    tokens={"admin-token": User("root", ("system:masters",))},
    authorize="rbac",
)
async def test_s7_it_watches_what_was_named_and_is_refused_the_rest(
    fleet: EmulatedFleet, nats_url: str
):
    for definition in crds():
        fleet["hub"].create(CRDS, definition)
    for name in ("fleetbus-clusters", "fleetbus"):
        fleet["hub"].create("v1/namespaces", {"metadata": {"name": name}})
    async with KubeClient(read_kube_config(fleet.kubeconfig, "hub")) as hub:
        admin = read_kube_config(fleet.kubeconfig, "eu1")
        await enroll(hub, "eu1", admin, BootstrapOptions(watched=sorted(WATCHED)))
        secret = await hub.get("v1/secrets", "fleetbus", "eu1-watcher") or {}
    config = read_upload(base64.b64decode(secret["data"]["kubeconfig"]).decode(), "limited")
    named = (*sorted(WATCHED), "configmaps")
    settings = load_settings(WatcherSettings, **QUICK | {"cluster": "eu1", "resources": named})
    async with connected(nats_url, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)

        async def states() -> dict[str, str]:
            messages = [stored.message for stored in await read_stream(bus)]
            beats = [message for message in messages if isinstance(message, Heartbeat)]
            listed = beats[-1].resources if beats else ()
            return {entry.resource: f"{entry.state} {entry.reason}".strip() for entry in listed}

        async def is_refused_one() -> bool:
            reported = await states()
            watched = all(reported.get(name, "").startswith("watching") for name in WATCHED)
            return watched and "Forbidden" in reported.get("configmaps", "")

        task = asyncio.create_task(run(settings, SharedSettings(nats_url=nats_url), config=config))
        try:
            await eventually(is_refused_one)
        finally:
            task.cancel()
            await asyncio.wait([task])
    refused = {r.path for r in fleet["eu1"].requests if r.status == 403}
    assert refused == {"/api/v1/configmaps"}
