"""The accounts of a join on a real API server: their rights, tokens, renewal and removal.

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from e2e.binaries import ProgramsMissingError, find_programs
from e2e.planes import ADMIN_TOKEN, Plane, control_planes
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.clusters.member_rights import NAMESPACE, WATCHER, WRITER
from fleetbus.clusters.providers.cluster import CLUSTERS, ClusterProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import Forbidden, Unauthorized
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig, read_kube_config, read_upload
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_cli.bootstrap.accounts import PLACES, MemberAccess, member_objects
from fleetbus_cli.bootstrap.enroll import Enrolled, enroll
from fleetbus_cli.bootstrap.options import BootstrapOptions
from fleetbus_cli.bootstrap.remove import unjoin_and_remove
from fleetbus_proto.events import EpochEnd
from fleetbus_reconciler.fleet_status.token_renewal import TokenRenewal
from fleetbus_watcher.main import run
from fleetbus_watcher.settings import WatcherSettings
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.api.rbac import Call, calls_of_audit_event, grants_of, missing, unused
from support.eventually import eventually
from support.rigs.watcher import QUICK, read_stream

pytestmark = pytest.mark.full
PLACES_ON_HUB = {
    WRITER: ("fleetbus-clusters", "eu1-kubeconfig"),
    WATCHER: ("fleetbus", "eu1-watcher"),
}
LIFETIME = timedelta(hours=1)


@pytest.fixture
async def planes(tmp_path: Path) -> AsyncGenerator[dict[str, Plane]]:
    try:
        programs = find_programs()
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    async with control_planes({"hub": None, "eu1": None}, tmp_path, programs) as started:
        yield started


def admin_of(plane: Plane) -> KubeConfig:
    return read_kube_config(plane.write_kubeconfig("admin", token=ADMIN_TOKEN))


async def test_w19_s7_a_real_cluster_gives_these_rights_and_no_others(
    planes: dict[str, Plane], nats_url: str
):
    admin = admin_of(planes["eu1"])
    async with KubeClient(admin_of(planes["hub"])) as hub, KubeClient(admin) as member:
        await set_up(hub)
        options = BootstrapOptions(
            watched=["pods", "apps/v1/deployments"], written=["configmaps"], lifetime=LIFETIME
        )
        enrolled = await enroll(hub, "eu1", admin, options)
        await enroll(hub, "eu1", admin, BootstrapOptions(lifetime=LIFETIME))  # changes nothing
        limited = {account: await access_of(hub, account) for account in (WATCHER, WRITER)}
        await watch(limited[WATCHER], nats_url)
        await check_writer(limited[WRITER])
        compare(planes["eu1"], enrolled)
        await renew(planes, hub)
        await remove(hub, member, admin, await access_of(hub, WRITER))


async def set_up(hub: KubeClient) -> None:
    for definition in crds():
        await hub.create(CRDS, definition)
    for name in ("fleetbus-clusters", "fleetbus"):
        namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await hub.create("v1/namespaces", namespace)

    async def is_served() -> bool:
        return any(
            api.resource.key == "fleetbus.dev/clusters" for api in await hub.discovery.refresh()
        )

    await eventually(is_served, timedelta(seconds=20))


async def access_of(hub: KubeClient, account: str) -> KubeConfig:
    secret = await hub.get("v1/secrets", *PLACES_ON_HUB[account])
    assert secret is not None
    return read_upload(base64.b64decode(secret["data"]["kubeconfig"]).decode(), account)


async def watch(config: KubeConfig, nats_url: str) -> None:
    """A watcher with the limited account lists and watches what it is asked to."""
    settings = load_settings(
        WatcherSettings, **QUICK | {"cluster": "eu1", "resources": ("pods", "deployments")}
    )
    async with connected(nats_url, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)

        async def has_listed() -> bool:
            messages = [stored.message for stored in await read_stream(bus)]
            return {message.resource for message in messages if isinstance(message, EpochEnd)} >= {
                "pods",
                "deployments",
            }

        task = asyncio.create_task(run(settings, SharedSettings(nats_url=nats_url), config=config))
        try:
            await eventually(has_listed, timedelta(seconds=20))
            await asyncio.sleep(1)  # it opens its watches
        finally:
            task.cancel()
            await asyncio.wait([task])
    async with KubeClient(config) as client:
        for resource in ("v1/configmaps", "v1/secrets"):
            with pytest.raises(Forbidden):
                await client.list(resource)


async def check_writer(config: KubeConfig) -> None:
    """The writer does with an object what the distributor does."""
    async with KubeClient(config) as client:
        body: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "made", "namespace": "default"},
        }
        await client.get("v1/namespaces", "", "default")
        await client.apply("v1/configmaps", body, field_manager="test")
        config_map = await client.get("v1/configmaps", "default", "made")
        await client.update("v1/configmaps", config_map or {})
        await client.list("v1/configmaps", "default")
        assert await client.delete("v1/configmaps", "default", "made")
        for resource in ("v1/pods", "v1/secrets", "v1/serviceaccounts"):
            with pytest.raises(Forbidden):
                await client.list(resource)


def compare(plane: Plane, enrolled: Enrolled) -> None:
    """The audit log of the API server against the roles: nothing is missing, nothing unused."""
    prefix = f"system:serviceaccount:{NAMESPACE}:"
    calls = [call for call in audited(plane.audit_log) if call.user.startswith(prefix)]
    grants = grants_of(objects_of(enrolled.access))
    refused = [call for call in missing(grants, calls) if not is_probe(call)]
    assert refused == []
    left = {str(grant).removeprefix(prefix) for grant in unused(grants, calls)}
    # The tokens are renewed later; no CRD or type was removed meanwhile.
    assert left <= {
        "fleetbus-watcher: list customresourcedefinitions.apiextensions.k8s.io */*",
        "fleetbus-watcher: list apiservices.apiregistration.k8s.io */*",
        "fleetbus-watcher: create serviceaccounts/token fleetbus-system/fleetbus-watcher",
        "fleetbus-writer: create serviceaccounts/token fleetbus-system/fleetbus-writer",
    }


def is_probe(call: Call) -> bool:
    """A call of this test that has to be refused."""
    resources = {WATCHER: {"configmaps", "secrets"}, WRITER: {"pods", "secrets", "serviceaccounts"}}
    return call.verb == "list" and call.resource in resources[call.user.rpartition(":")[2]]


def audited(log: Path) -> Iterator[Call]:
    for line in log.read_text().splitlines():
        yield from calls_of_audit_event(json.loads(line))


def objects_of(access: MemberAccess) -> list[dict[str, Any]]:
    return list(member_objects(access).values())


async def renew(planes: dict[str, Plane], hub: KubeClient) -> None:
    """Each account gets itself another token; the old ones are still valid."""
    config = admin_of(planes["hub"])
    clusters = Clusters([ClusterProvider(config, "fleetbus-clusters")])
    task = asyncio.create_task(clusters.run())
    before = {account: (await access_of(hub, account)).document for account in PLACES_ON_HUB}
    try:
        renewal = TokenRenewal(
            hub=config,
            clusters=clusters,
            namespace="fleetbus-clusters",
            watcher_secrets=["/".join(PLACES_ON_HUB[WATCHER])],
            now=lambda: time.time() + 0.6 * LIFETIME.total_seconds(),
            apart=timedelta(),
        )
        await renewal.renew_all(hub)
    finally:
        task.cancel()
        await asyncio.wait([task])
    for account, old in before.items():
        config = await access_of(hub, account)
        assert config.document != old
        async with KubeClient(config) as client:
            assert await client.kube_system_uid()


async def remove(
    hub: KubeClient, member: KubeClient, admin: KubeConfig, limited: KubeConfig
) -> None:
    removed = await unjoin_and_remove(hub, "eu1", admin, namespace="fleetbus-clusters")
    assert (removed.kept, set(removed.on_member)) == ("", set(PLACES))
    assert await hub.get(CLUSTERS, "", "eu1") is None
    for place in PLACES[1:]:
        assert await member.get(place.resource, place.namespace, place.name) is None

    async def is_refused() -> bool:
        async with KubeClient(limited) as client:
            try:
                await client.get_json("/version")
                await client.kube_system_uid()
            except Unauthorized:
                return True
            except Forbidden:
                return False  # the binding is gone, the account still known for a moment
        return False

    await eventually(is_refused, timedelta(seconds=30))
