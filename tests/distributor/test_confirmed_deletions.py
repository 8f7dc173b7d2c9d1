"""Rule D8: a confirmation covers what goes, by name, once and never more."""

import copy
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fleetbus.errors import Conflict
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.hub.document import Document
from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import CONFIG_MAP, Rig, distributor_rig

MAPS = "v1/configmaps"
NAMESPACES = "v1/namespaces"
PROD = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}
MEMBERS = ("c0", "c1", "c2")


class _CrashError(Exception):
    """The process ends here."""


def template(name: str) -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied


def relabel(rig: Rig, *clusters: str, tier: str = "prd") -> None:
    for cluster in clusters:
        rig.fleet.join(cluster, tier=tier)


def where(rig: Rig, name: str = "x") -> list[str]:
    return [cluster for cluster in MEMBERS if rig.has(cluster, MAPS, name)]


def confirm(rig: Rig, plan_hash: str = "") -> str:
    """Set the annotation, as a person does, or whoever keeps it in git."""
    plan = plan_hash or rig.plan_hash()
    rig.annotate(CONFIRM_PRUNE_ANNOTATION, plan)
    return plan


def annotation(rig: Rig) -> str:
    annotations: dict[str, str] = rig.resource()["metadata"].get("annotations") or {}
    return annotations.get(CONFIRM_PRUNE_ANNOTATION, "")


async def rounds(rig: Rig, count: int = 3) -> None:
    for _ in range(count):
        await rig.reconcile()


@pytest.fixture
async def fleet(valkey_url: str) -> AsyncGenerator[Rig]:
    """Three members, one object on each, and no deletion without a question."""
    async with distributor_rig(*MEMBERS, redis_url=valkey_url) as rig:
        relabel(rig, *MEMBERS, tier="prod")
        policy = {"fuse": {"clusters": 1}}
        rig.create(template=template("x"), placement=PROD, policy=policy)
        await rig.reconcile()
        assert where(rig) == list(MEMBERS)
        yield rig


async def test_d8_the_same_loss_is_not_confirmed_again(fleet: Rig):
    relabel(fleet, "c1")
    await rounds(fleet)
    plan = confirm(fleet)
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])
    assert annotation(fleet) == ""
    for _ in range(2):
        confirm(fleet, plan)
        relabel(fleet, "c1", tier="prod")
        await rounds(fleet)
        assert where(fleet) == list(MEMBERS)
        relabel(fleet, "c1")
        await rounds(fleet)
        assert where(fleet) == list(MEMBERS)
        assert fleet.plan_hash() not in ("", plan)


async def test_d8_a_confirmation_that_was_left_does_not_cover_a_cluster_that_joined(fleet: Rig):
    """The same remains both times: nothing but c0."""
    spec = fleet.resource()["spec"]
    fleet.delete()
    await rounds(fleet)
    fleet.fleet.leave("c2")
    fleet.create(**spec)
    await fleet.reconcile()
    relabel(fleet, "c1")
    await rounds(fleet)
    plan = confirm(fleet)
    await fleet.until(lambda: "c1" not in where(fleet))
    relabel(fleet, "c1", "c2", tier="prod")
    await rounds(fleet)
    relabel(fleet, "c1", "c2")
    confirm(fleet, plan)
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    assert fleet.resource()["status"]["held"]["objects"] == 2


async def test_d8_a_confirmation_of_a_question_that_changed_and_changed_back_is_void(fleet: Rig):
    relabel(fleet, "c1")
    await rounds(fleet)
    relabel(fleet, "c2")
    confirm(fleet)  # of what was shown a moment ago
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    relabel(fleet, "c2", tier="prod")
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    confirm(fleet)
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])


async def test_d8_a_question_keeps_its_hash_while_nothing_changes(fleet: Rig):
    relabel(fleet, "c1")
    await rounds(fleet)
    before = fleet.resource()
    fleet.restart()
    await rounds(fleet)
    assert fleet.resource() == before


async def test_d8_what_was_confirmed_goes_however_many_rounds_it_takes_and_nothing_else(fleet: Rig):
    relabel(fleet, "c1")
    await rounds(fleet)
    fault = fleet.clusters["c1"].faults.add(Fail(503), verb="delete")
    plan = confirm(fleet)
    await fleet.reconcile()
    assert fault.hits
    assert annotation(fleet) == "", "the answer is on record"
    relabel(fleet, "c2")
    fleet.restart()
    confirm(fleet, plan)
    await rounds(fleet)
    assert fleet.resource()["status"]["held"]["clusters"] == ["c2"]
    fleet.clusters["c1"].faults.clear()
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])
    await rounds(fleet)
    assert where(fleet) == ["c0", "c2"]


async def test_d8_what_was_confirmed_and_is_wanted_again_meanwhile_needs_a_new_confirmation(
    fleet: Rig,
):
    relabel(fleet, "c1")
    await rounds(fleet)
    fleet.clusters["c1"].faults.add(Fail(503), verb="delete")
    confirm(fleet)
    await fleet.reconcile()
    relabel(fleet, "c1", tier="prod")
    await fleet.reconcile()
    fleet.clusters["c1"].faults.clear()
    relabel(fleet, "c1")
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    assert fleet.plan_hash()


@pytest.mark.parametrize("crash", ["before the record", "after the record", "after the deletion"])
async def test_d8_a_crash_neither_loses_an_answer_nor_takes_it_twice(
    fleet: Rig, crash: str, monkeypatch: pytest.MonkeyPatch
):
    relabel(fleet, "c1")
    await rounds(fleet)
    plan = confirm(fleet)
    hub = fleet.fleet.cluster(fleet.fleet.hub).live

    async def die(*_arguments: Any, **_options: Any) -> Any:
        raise _CrashError

    with monkeypatch.context() as patch:
        if crash == "before the record":
            patch.setattr(hub, "update_status", die)
        elif crash == "after the record":
            patch.setattr(Document, "drop_confirmation", die)
        else:
            patch.setattr(Document, "emit_events", die)
        with pytest.raises(_CrashError):
            await fleet.reconcile()
    fleet.restart()
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])
    relabel(fleet, "c1", tier="prod")
    await rounds(fleet)
    relabel(fleet, "c1")
    confirm(fleet, plan)
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)


async def test_r4_of_two_processes_one_takes_the_answer(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    relabel(fleet, "c1")
    await rounds(fleet)
    confirm(fleet)
    really_update = KubeClient.update_status
    first = fleet.distributor
    overtaken: list[Conflict] = []

    async def update(client: KubeClient, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(KubeClient, "update_status", really_update)
        fleet.restart()  # the other process is quicker
        await fleet.until(lambda: where(fleet) == ["c0", "c2"])
        relabel(fleet, "c1", tier="prod")
        await rounds(fleet)
        fleet.distributor = first
        try:
            return await client.update_status(*arguments, **options)
        except Conflict as error:
            overtaken.append(error)
            raise

    monkeypatch.setattr(KubeClient, "update_status", update)
    await fleet.reconcile()
    assert overtaken
    assert where(fleet) == list(MEMBERS)


async def test_d8_an_answer_to_an_empty_selection_goes_on_after_a_crash(fleet: Rig):
    relabel(fleet, *MEMBERS)
    await rounds(fleet)
    assert fleet.condition("DeletionHeld")["reason"] == "EmptySelection"
    fleet.clusters["c1"].faults.add(Fail(503), verb="delete", count=1)
    confirm(fleet)
    await fleet.reconcile()
    assert where(fleet) == ["c1"]
    fleet.restart()
    await fleet.until(lambda: where(fleet) == [])
    await rounds(fleet)
    assert "held" not in fleet.resource()["status"]


async def test_d8_without_its_status_nothing_is_confirmed(fleet: Rig):
    """A backup without status, or somebody's hand."""
    relabel(fleet, "c1")
    await rounds(fleet)
    confirm(fleet)
    lost = fleet.resource()
    lost["status"] = {}
    fleet.hub.update(MULTI_CLUSTER_RESOURCES, lost, subresource="status")
    fleet.restart()
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    relabel(fleet, "c2")
    await rounds(fleet)
    assert where(fleet) == list(MEMBERS)
    assert fleet.plan_hash()


async def test_d8_a_hub_restored_from_a_backup_takes_no_answer_for_other_objects(fleet: Rig):
    relabel(fleet, "c1")
    await rounds(fleet)
    confirm(fleet)
    backup = fleet.resource()  # with question and answer
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])
    relabel(fleet, "c1", tier="prod")
    await rounds(fleet)
    uid = fleet.get("c1", MAPS, "x")["metadata"]["uid"]
    relabel(fleet, "c1")
    confirm(fleet, backup["metadata"]["annotations"][CONFIRM_PRUNE_ANNOTATION])
    restored = fleet.resource()
    restored["status"] = backup["status"]
    fleet.hub.update(MULTI_CLUSTER_RESOURCES, restored, subresource="status")
    fleet.restart()
    await rounds(fleet)
    assert fleet.get("c1", MAPS, "x")["metadata"]["uid"] == uid
    assert fleet.resource()["status"]["held"]["clusters"] == ["c1"]
    confirm(fleet)
    await fleet.until(lambda: where(fleet) == ["c0", "c2"])


async def test_d8_what_goes_with_its_namespace_goes_on_after_a_crash(fleet: Rig):
    fleet.hub.create(NAMESPACES, {"metadata": {"name": "team"}})
    fleet.create(namespace="team", template=template("y"), placement=PROD)

    async def look(count: int = 2) -> dict[str, Any]:
        for _ in range(count):
            await fleet.reconcile(namespace="team")
        return fleet.hub.get(MULTI_CLUSTER_RESOURCES, "team", "x") or {}

    await look()
    fleet.hub.delete(NAMESPACES, None, "team")
    fleet.hub.delete(MULTI_CLUSTER_RESOURCES, "team", "x")
    hold = (await look())["status"]["held"]
    fleet.clusters["c1"].faults.add(Fail(503), verb="delete", count=1)
    fleet.hub.patch(
        MULTI_CLUSTER_RESOURCES,
        "team",
        "x",
        {"metadata": {"annotations": {CONFIRM_PRUNE_ANNOTATION: hold["planHash"]}}},
    )
    left = await look(1)
    assert where(fleet, "y") == ["c1"]
    assert "held" not in left["status"]
    fleet.restart()
    assert await look() == {}
    assert where(fleet, "y") == []
