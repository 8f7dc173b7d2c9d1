"""The chart's distributor may do with chunks and revisions on the hub what it does, and no more.

Its reconcile function runs with the rendered roles, and with chunks that are small enough for a few
objects to need several (rule S7).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from fleetbus.fleet.inventory_chunks import CHUNKS
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.hub import chunks
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_emulator.apiserver import Cluster, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.api.rbac import Object
from support.api.rendered_chart import VALUES, of_kind, render
from support.rigs.distributor import CONFIG_MAP, HUB, Rig
from support.rigs.release import account
from support.rigs.rollout import CANARY, T1, T2, rounds

RBAC = "rbac.authorization.k8s.io/v1"
PLURALS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}
KINDS = {"inventorychunks": "fleetbus.dev", "controllerrevisions": "apps"}
TOKEN = "token-of-the-distributor"
BOTH = {"clusters": [T1, T2]}
OLD = timedelta(minutes=11)


@pytest.fixture(scope="module")
def rights() -> list[Object]:
    return of_kind(render(VALUES["everything"]), *PLURALS)


@pytest.fixture
async def rig(
    rights: list[Object], valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Rig]:
    monkeypatch.setattr(intent, "MAX_BYTES", 300)
    monkeypatch.setattr(intent, "PART_BYTES", 100)
    tokens = {TOKEN: account("fb-fleetbus-distributor")}
    hub = Cluster(HUB, authorize="rbac", tokens=tokens)
    members = [Cluster(name, tokens=tokens) for name in ("t1", "t2")]
    for right in rights:
        namespace = right["metadata"].get("namespace", "")
        if namespace and hub.get("v1/namespaces", None, namespace) is None:
            hub.create("v1/namespaces", {"metadata": {"name": namespace}})
        hub.create(f"{RBAC}/{PLURALS[right['kind']]}", right, namespace or None)
    redis = Redis.from_url(valkey_url)
    async with redis, serve([*members, hub], tls=True) as servers:
        opened = Rig(servers, redis, TOKEN)
        for definition in crds():
            hub.create(CRDS, definition)
        for name in ("t1", "t2", HUB):
            opened.fleet.join(name)
        try:
            yield opened
        finally:
            await opened.fleet.aclose()


async def test_s7_the_distributor_uses_all_rights_to_chunks_and_revisions_and_needs_no_other(
    rig: Rig, rights: list[Object]
):
    await live_through_it(rig)
    refused = [request for request in rig.hub.requests if request.status in (401, 403)]
    assert refused == []
    granted = {(plural, verb) for plural, verb in granted_to_distributor(rights)}
    assert used(rig) == granted, "rights of the chart, and what the distributor calls"


async def live_through_it(rig: Rig) -> None:
    """Roll out revisions, one of them again, with an intent in several chunks that changes."""
    rig.create(templates=templates("v1"), placement=BOTH, rollout={"waves": [CANARY]})
    await rounds(rig, 3)
    assert len(rig.resource()["status"]["intent"]["chunks"]) > 1
    for value, history in (("v2", 1), ("v1", 0)):
        rig.restart()
        rollout = {"waves": [CANARY], "revisionHistoryLimit": history}
        rig.edit(templates=templates(value), rollout=rollout)
        await rounds(rig, 3)
        assert set(rig.states().values()) == {"Applied"}
    hub = rig.fleet.cluster(HUB).live
    document = Document(hub, rig.resource())
    left = {"objects": [], "clusters": [{"name": "left"}]}
    for _ in range(2):  # by a process that died before the status named it, and again
        await chunks.ChunkStore().write(hub, document.resource, [left], [])
    assert await chunks.sweep(
        hub, await hub.list(MULTI_CLUSTER_RESOURCES), now=datetime.now(UTC) + OLD
    )
    rig.delete()
    await rounds(rig, 2)
    assert not rig.exists()
    assert rig.hub.names(CHUNKS) == []


def templates(value: str) -> list[Object]:
    metadata = [{"name": f"m{number}", "namespace": "default"} for number in range(3)]
    return [
        {**CONFIG_MAP, "metadata": each_metadata, "data": {"k": value}}
        for each_metadata in metadata
    ]


def used(rig: Rig) -> set[tuple[str, str]]:
    calls = [(request.path.split("/"), request.verb) for request in rig.hub.requests]
    return {(plural, verb) for parts, verb in calls for plural in KINDS if plural in parts}


def granted_to_distributor(rights: list[Object]) -> Iterator[tuple[str, str]]:
    for role in of_kind(rights, "ClusterRole", "Role"):
        if "distributor" not in role["metadata"]["name"]:
            continue
        rules: list[Object] = role.get("rules") or []
        for rule in rules:
            for plural, group in KINDS.items():
                if plural in rule["resources"] and group in rule["apiGroups"]:
                    for verb in rule["verbs"]:
                        yield plural, verb
