"""T13: a cluster from a ClusterProfile joins, rotates credentials, gets ill, recovers, leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from fleetbus.controller.controller import Controller
from fleetbus_emulator.apiserver import Cluster
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.fleet import Recorder, Rig
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

OpenRig = Callable[..., Awaitable[Rig]]
PROFILES = "multicluster.x-k8s.io/v1alpha1/clusterprofiles"
DEFINITION = definition(
    "multicluster.x-k8s.io",
    "clusterprofiles",
    "ClusterProfile",
    "v1alpha1",
    subresources={"status": {}},
)
FIRST, SECOND = "first-t0ken", "second-t0ken"
POD = "cluster-inventory-api-e2e"


@pytest.fixture
async def story(open_rig: OpenRig) -> AsyncGenerator[Scenario]:
    rig = await open_rig("hub", "spoke", "other", tokens={"spoke": FIRST})
    hub = rig.clusters["hub"]
    hub.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    hub.create(CRDS, DEFINITION)
    async with scenario(rig) as opened:
        opened.use({"type": "cluster-inventory", "namespace": NAMESPACE}, hub="hub")
        recorder = Recorder(Controller("profiles"), MAPS)
        recorder.controller.watch(MAPS)
        opened.start_reconciler(recorder)
        await opened.start_pool()
        yield opened
        await rig.aclose()


def profile(hub: Cluster, name: str) -> None:
    hub.create(PROFILES, {"metadata": {"name": name}}, NAMESPACE)


def turn(hub: Cluster, name: str, health: str) -> None:
    """Let the condition say so."""
    condition = {"type": "ControlPlaneHealthy", "status": health, "message": "as reported"}
    hub.patch(
        PROFILES, NAMESPACE, name, {"status": {"conditions": [condition]}}, subresource="status"
    )


def secret(rig: Rig, profile_name: str, server: str, token: str) -> dict[str, Any]:
    labels = {
        "x-k8s.io/cluster-inventory-consumer": "fleetbus",
        "x-k8s.io/cluster-profile": profile_name,
    }
    text = json.dumps(access(rig, server, token=token))
    metadata = {"name": f"{profile_name}-access", "labels": labels}
    return {"metadata": metadata, "data": {"Config": encoded(text)}}


@pytest.mark.slow
async def test_t13_a_profile_joins_changes_credentials_gets_ill_and_well_and_leaves(
    story: Scenario,
) -> None:
    rig, (recorder,) = story.rig, story.recorders
    hub, spoke = rig.clusters["hub"], rig.clusters["spoke"]
    story.write("spoke", POD)
    for name, server in (("spoke-1", "spoke"), ("spoke-2", "other")):
        profile(hub, name)
        hub.create(SECRETS, secret(rig, name, server, FIRST), NAMESPACE)
    turn(hub, "spoke-2", "False")
    turn(hub, "spoke-1", "True")
    await eventually(lambda: recorder.of("spoke-1", "default", POD), WITHIN)
    assert await story.are_members("spoke-1"), "2: one that was never healthy has joined"

    spoke.credentials.add_token(SECOND, "somebody")
    hub.patch(SECRETS, NAMESPACE, "spoke-1-access", secret(rig, "spoke-1", "spoke", SECOND))
    spoke.credentials.revoke_token(FIRST)
    story.write("spoke", "after-rotation")
    await eventually(lambda: recorder.of("spoke-1", "default", "after-rotation"), WITHIN)
    await eventually(lambda: story.lives("spoke") == 2 and spoke.open_watches == 1, WITHIN)
    await story.reported("spoke-1")

    turn(hub, "spoke-1", "False")
    await eventually(lambda: is_stale(story), WITHIN)
    assert await story.rows("spoke-1") == {POD, "after-rotation"}
    await eventually(lambda: not spoke.open_watches, WITHIN)
    story.write("spoke", "while-ill")
    lists = story.lists_made("spoke")
    turn(hub, "spoke-1", "True")
    await eventually(lambda: recorder.of("spoke-1", "default", "while-ill"), WITHIN)
    await story.synced("spoke-1")
    assert story.lists_made("spoke") == lists, "it did not go on where it was"

    await story.close(secrets=[FIRST, SECOND])
    hub.delete(PROFILES, NAMESPACE, "spoke-1")
    await eventually(story.are_members, WITHIN)
    await eventually(lambda: not spoke.open_watches, WITHIN)
    await eventually(lambda: has_no_rows(story), WITHIN)
    assert not [r for r in rig.clusters["other"].requests if r.user_agent.startswith("fleetbus")]
    assert not story.deletions()
    assert {obj["metadata"]["name"] for obj in spoke.list(MAPS, "default")} >= {POD, "while-ill"}


async def has_no_rows(story: Scenario) -> bool:
    return not await story.rows("spoke-1")


async def is_stale(story: Scenario) -> bool:
    """Whether the cluster is shown as not ready, and what is known of it as stale."""
    record = await story.record("spoke-1")
    freshness = (await story.rig.reader.freshness(["spoke-1"], "core/configmaps"))["spoke-1"]
    return (record.connected, record.reason, freshness.state) == (False, "Unusable", "stale") and (
        "ControlPlaneHealthy is False" in record.message
    )
