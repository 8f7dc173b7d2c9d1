"""T2: the example deploymentcopy, from one cluster to another."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.controller.load import load_controllers
from fleetbus.ownership import OWNER_ANNOTATION, owner_of
from support.eventually import eventually, stays
from support.objects import deployment
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET

OpenRig = Callable[..., Awaitable[Rig]]
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "deploymentcopy" / "controller.py"
DEPLOYMENTS = "apps/v1/deployments"
WITHIN = timedelta(seconds=20)  # other tests may run beside it on a small machine


@pytest.fixture
async def rig(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("FLEETBUS_EXAMPLE_SOURCE", "a")
    monkeypatch.setenv("FLEETBUS_EXAMPLE_DESTINATION", "b")
    rig = await open_rig("a", "b")
    rig.start_reconciler(*load_controllers([str(EXAMPLE)]))
    rig.start_watcher("a")
    rig.start_watcher("b")
    await rig.synced("apps/deployments")
    return rig


def copy_in_b(rig: Rig, name: str) -> dict[str, Any] | None:
    return rig.clusters["b"].get(DEPLOYMENTS, "default", name)


async def copied(rig: Rig, name: str, replicas: int) -> dict[str, Any]:
    def is_copied() -> dict[str, Any] | None:
        copy = copy_in_b(rig, name)
        return copy if copy and copy["spec"]["replicas"] == replicas else None

    found = await eventually(is_copied, within=WITHIN)
    assert found is not None
    return found


@pytest.mark.full  # its example has a test that always runs
async def test_t2_a_copy_has_an_equal_spec_an_owner_mark_and_no_identity_of_the_source(
    rig: Rig,
) -> None:
    source = rig.clusters["a"].create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    copy = await copied(rig, "d", 2)
    assert copy["spec"] == source["spec"]
    metadata = copy["metadata"]
    assert metadata["uid"] != source["metadata"]["uid"]
    assert "ownerReferences" not in metadata
    owner = owner_of(copy)
    assert owner is not None
    assert (owner.api_version, owner.kind, owner.namespace, owner.name, owner.cluster_name) == (
        "apps/v1",
        "Deployment",
        "default",
        "d",
        "a",
    )
    assert owner.uid == source["metadata"]["uid"]
    assert owner.controller
    assert owner.block_owner_deletion


@pytest.mark.full  # its example has a test that always runs
async def test_t2_changes_follow_edits_and_deletions_of_the_copy_are_undone(
    rig: Rig,
) -> None:
    a, b = rig.clusters["a"], rig.clusters["b"]
    a.create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    await copied(rig, "d", 2)
    a.patch(DEPLOYMENTS, "default", "d", {"spec": {"replicas": 5}})
    await copied(rig, "d", 5)
    b.patch(DEPLOYMENTS, "default", "d", {"spec": {"replicas": 1}})
    await copied(rig, "d", 5)
    b.delete(DEPLOYMENTS, "default", "d")
    await copied(rig, "d", 5)


@pytest.mark.slow
async def test_t2_other_namespaces_and_strangers_are_left_alone(rig: Rig) -> None:
    a, b = rig.clusters["a"], rig.clusters["b"]
    a.create("v1/namespaces", {"metadata": {"name": "other"}})
    before = b.create(DEPLOYMENTS, deployment("stranger", replicas=2), "default")
    a.create(DEPLOYMENTS, deployment("elsewhere", namespace="other", replicas=2), "other")
    a.create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    await copied(rig, "d", 2)
    # a quiet time: what must never come
    await stays(
        None,
        lambda: b.get(DEPLOYMENTS, "other", "elsewhere"),
        QUIET,
    )
    after = copy_in_b(rig, "stranger")
    assert after == before


@pytest.mark.full  # its example has a test that always runs
async def test_t2_a_deleted_source_takes_its_copy_with_it(rig: Rig) -> None:
    rig.clusters["a"].create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    await copied(rig, "d", 2)
    rig.clusters["a"].delete(DEPLOYMENTS, "default", "d")
    await eventually(lambda: copy_in_b(rig, "d") is None, within=WITHIN)


async def test_t2_also_when_watcher_and_reconciler_were_down_meanwhile(rig: Rig) -> None:
    rig.clusters["a"].create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    rig.clusters["a"].create(DEPLOYMENTS, deployment("stays", replicas=2), "default")
    await copied(rig, "d", 2)
    await copied(rig, "stays", 2)
    await rig.stop_watcher("a")
    await rig.stop_reconciler()
    rig.clusters["a"].delete(DEPLOYMENTS, "default", "d")
    rig.start_reconciler(*load_controllers([str(EXAMPLE)]))
    rig.start_watcher("a")
    await eventually(lambda: copy_in_b(rig, "d") is None, within=timedelta(seconds=15))
    assert copy_in_b(rig, "stays") is not None


@pytest.mark.slow
async def test_t2_a_stranger_of_the_same_name_survives_the_whole_life_of_a_source(
    rig: Rig,
) -> None:
    before = rig.clusters["b"].create(DEPLOYMENTS, deployment("e", replicas=2), "default")
    with capture_logs() as logs:
        rig.clusters["a"].create(DEPLOYMENTS, deployment("e", replicas=4), "default")
        rig.clusters["a"].create(DEPLOYMENTS, deployment("d", replicas=2), "default")
        await copied(rig, "d", 2)
        reported = await eventually(
            lambda: [line for line in logs if line["event"] == "reconcile_gave_up"], WITHIN
        )
    assert "b: default/e" in reported[0]["error"]
    rig.clusters["a"].delete(DEPLOYMENTS, "default", "e")
    await stays(before, lambda: copy_in_b(rig, "e"), QUIET)


@pytest.mark.full  # tests/sdk/test_ownership.py and tests/sdk/children have it
async def test_t2_a_mark_that_cannot_be_read_is_reported_of_and_nothing_is_deleted(
    rig: Rig,
) -> None:
    a, b = rig.clusters["a"], rig.clusters["b"]
    a.create(DEPLOYMENTS, deployment("d", replicas=2), "default")
    a.create(DEPLOYMENTS, deployment("other", replicas=2), "default")
    await copied(rig, "d", 2)
    await copied(rig, "other", 2)
    await rig.quiet("deploymentcopy")
    broken = {"metadata": {"annotations": {OWNER_ANNOTATION: "{broken"}}}
    with capture_logs() as logs:
        b.patch(DEPLOYMENTS, "default", "d", broken)
        a.delete(DEPLOYMENTS, "default", "d")
        a.patch(DEPLOYMENTS, "default", "other", {"spec": {"replicas": 3}})
        await copied(rig, "other", 3)
        await eventually(
            lambda: [line for line in logs if line["event"] == "reconcile_gave_up"], WITHIN
        )
        await rig.quiet("deploymentcopy")
    errors = [line["error"] for line in logs if line["event"] == "reconcile_gave_up"]
    assert len(set(errors)) == 1
    assert len(errors) <= 2, "one for each change, and none is retried"
    assert "b: default/d" in errors[0]
    assert copy_in_b(rig, "d") is not None
