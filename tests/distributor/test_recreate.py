"""Rules D6 and D8: policy recreate deletes freely only what an edit changed."""

import copy
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.deletions.budget import Decision, Deletion, DeletionBudget, OwnerLimits
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import CONFIG_MAP, Rig, distributor_rig

MAPS = "v1/configmaps"
MEMBERS = ("c0", "c1", "c2", "c3", "c4")
EVERYWHERE = {"clusters": [{"name": name} for name in MEMBERS]}
RECREATE = {"recreate": True}


def immutable(value: str = "${cluster.labels.zone}", name: str = "m") -> dict[str, Any]:
    """A ConfigMap whose data no API server changes any more."""
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied | {"immutable": True, "data": {"k": value}}


def zone(rig: Rig, name: str, *clusters: str) -> None:
    """Put a label on clusters that the template uses and no placement does."""
    for cluster in clusters or MEMBERS:
        rig.fleet.join(cluster, zone=name)


def found(rig: Rig, name: str = "m") -> dict[str, tuple[str, str]]:
    """Cluster → UID and value of an object, where it exists."""
    objects = {cluster: rig.clusters[cluster].get(MAPS, "default", name) for cluster in MEMBERS}
    return {
        cluster: (obj["metadata"]["uid"], obj["data"]["k"])
        for cluster, obj in objects.items()
        if obj
    }


def values(rig: Rig, name: str = "m") -> list[str]:
    return [value for _, value in found(rig, name).values()]


def deletions(rig: Rig) -> int:
    return sum(write.verb == "delete" for cluster in MEMBERS for write in rig.writes(cluster))


def replace_by_hand(rig: Rig, cluster: str) -> None:
    """Put another object with the same mark in the place of ours, as a restored backup does."""
    original = rig.get(cluster, MAPS, "m")["metadata"]
    metadata = {field: original[field] for field in ("name", "labels", "annotations")}
    rig.clusters[cluster].delete(MAPS, "default", "m")
    rig.clusters[cluster].create(MAPS, {**immutable("by hand"), "metadata": metadata})


async def rounds(rig: Rig, count: int = 3, name: str = "x") -> None:
    for _ in range(count):
        await rig.reconcile(name)


@pytest.fixture
async def fleet(valkey_url: str) -> AsyncGenerator[Rig]:
    """Five members in zone a, each with an object that names its zone and cannot be changed."""
    async with distributor_rig(*MEMBERS, redis_url=valkey_url) as rig:
        zone(rig, "a")
        rig.create(template=immutable(), placement=EVERYWHERE, policy=RECREATE)
        await rig.reconcile()
        assert values(rig) == ["a"] * 5
        yield rig


async def test_d8_a_label_in_an_immutable_field_replaces_nothing_until_it_is_confirmed(fleet: Rig):
    before = found(fleet)
    zone(fleet, "b")
    await rounds(fleet)
    assert found(fleet) == before
    assert deletions(fleet) == 0
    hold = fleet.resource()["status"]["held"]
    assert (hold["reason"], hold["objects"]) == ("DeletionFuse", 5)
    assert hold["clusters"] == list(MEMBERS)
    message = fleet.condition("DeletionHeld")["message"]
    assert "5 of 5 objects on 5 cluster(s) would be deleted (5 to be recreated" in message
    assert set(fleet.states().values()) == {"Held/RecreateHeld"}
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, fleet.plan_hash())
    await fleet.until(lambda: values(fleet) == ["b"] * 5)
    assert deletions(fleet) == 5
    await fleet.reconcile()
    assert set(fleet.states().values()) == {"Applied"}
    assert "held" not in fleet.resource()["status"]


async def test_d8_what_is_found_is_planned_in_a_round_of_its_own_soon(fleet: Rig):
    zone(fleet, "b", "c4")
    result = await fleet.reconcile()
    assert deletions(fleet) == 0
    assert result is not None
    assert result.requeue_after is not None
    assert result.requeue_after.total_seconds() <= 1
    await fleet.reconcile()
    assert deletions(fleet) == 1
    await fleet.until(lambda: values(fleet) == ["a"] * 4 + ["b"])


@pytest.mark.parametrize("when", ["at once", "unreachable", "after a crash", "relabelled before"])
async def test_d6_an_edit_replaces_without_a_question(fleet: Rig, when: str):
    if when == "relabelled before":  # a label that the template does not use
        for name in MEMBERS:
            fleet.fleet.join(name, zone="a", other="b")
        await fleet.reconcile()
    if when == "unreachable":
        for name in MEMBERS:
            fleet.clusters[name].faults.add(Fail(503), verb="get", resource="configmaps", count=1)
    fleet.edit(template=immutable("edited"))
    await fleet.reconcile()
    if when == "after a crash":
        assert found(fleet) == {}, "deleted, and not created yet"
        fleet.restart()
    await fleet.until(lambda: values(fleet) == ["edited"] * 5)
    assert deletions(fleet) == 5
    assert await DeletionBudget(fleet.redis).used() == 0


async def test_d8_labels_that_change_one_after_the_other_replace_one_object(fleet: Rig):
    for cluster in MEMBERS:
        zone(fleet, "b", cluster)
        await rounds(fleet)
    assert values(fleet) == ["b", "a", "a", "a", "a"]
    assert deletions(fleet) == 1
    assert fleet.resource()["status"]["held"]["clusters"] == list(MEMBERS[1:])


async def test_d8_a_replacement_that_is_no_longer_needed_is_no_longer_asked_for(fleet: Rig):
    before = found(fleet)
    zone(fleet, "b")
    await rounds(fleet)
    first = fleet.plan_hash()
    zone(fleet, "a")
    await rounds(fleet)
    assert "held" not in fleet.resource()["status"]
    assert set(fleet.states().values()) == {"Applied"}
    zone(fleet, "b")
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, first)
    await rounds(fleet)
    assert found(fleet) == before
    assert fleet.plan_hash() not in ("", first)


@pytest.mark.parametrize("edited", ["after a look", "before a look", "while unreachable"])
async def test_d8_an_edit_does_not_make_a_relabelling_explicit(fleet: Rig, edited: str):
    before = found(fleet)
    if edited == "while unreachable":
        for name in MEMBERS:
            fleet.clusters[name].faults.add(Fail(500), verb="patch")
    zone(fleet, "b")
    if edited != "before a look":
        await rounds(fleet)
    fleet.edit(vars={"a": "b"})
    await rounds(fleet)
    fleet.edit(vars={"a": "c"})
    fleet.restart()
    for name in MEMBERS:
        fleet.clusters[name].faults.clear()
    await rounds(fleet)
    assert found(fleet) == before
    assert fleet.resource()["status"]["held"]["objects"] == 5


async def test_d8_a_relabelling_does_not_use_an_edit_that_is_still_to_come_to_a_cluster(fleet: Rig):
    before = found(fleet)
    for name in MEMBERS:
        fleet.clusters[name].faults.add(Fail(500), verb="patch")
    fleet.edit(vars={"a": "b"})
    await fleet.reconcile()
    zone(fleet, "b")
    await fleet.reconcile()
    for name in MEMBERS:
        fleet.clusters[name].faults.clear()
    await rounds(fleet)
    assert found(fleet) == before
    assert fleet.plan_hash()


async def test_d8_an_edit_that_drops_an_outdated_object_is_an_order(fleet: Rig):
    fleet.edit(templates=[immutable(), immutable("v", "n")], template=None)
    await fleet.until(lambda: values(fleet, "n") == ["v"] * 5)
    zone(fleet, "b")
    await rounds(fleet)
    assert fleet.plan_hash()
    fleet.edit(templates=[immutable("v", "n")])
    await fleet.until(lambda: found(fleet) == {})
    await fleet.reconcile()
    assert "held" not in fleet.resource()["status"]


async def test_d8_policy_orphan_does_not_free_replacements(fleet: Rig):
    fleet.edit(policy={**RECREATE, "deletion": "Orphan"})
    await fleet.reconcile()
    zone(fleet, "b")
    await rounds(fleet)
    assert values(fleet) == ["a"] * 5
    assert fleet.plan_hash()


async def test_d8_replacements_are_paid_from_the_fleets_budget(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_distributor.plan.fleet_fuse.LEAST", 2)
    monkeypatch.setattr("fleetbus.deletions.budget.LEAST", 2)
    fleet.delete()
    await rounds(fleet)
    for name in ("x0", "x1", "x2"):
        fleet.create(name, template=immutable(name=name), placement=EVERYWHERE, policy=RECREATE)
        await fleet.reconcile(name)
    zone(fleet, "b", "c4")
    for name in ("x0", "x1", "x2"):
        fleet.restart()
        await rounds(fleet, 3, name)
    assert [found(fleet, name)["c4"][1] for name in ("x0", "x1", "x2")] == ["b", "b", "a"]
    assert fleet.resource("x2")["status"]["held"]["reason"] == "FleetBudget"
    assert await DeletionBudget(fleet.redis).used() == 2


async def test_d8_the_share_of_all_objects_counts_what_is_recreated(valkey_url: str):
    """A replaced object is still there: it does not make the whole larger."""
    async with Redis.from_url(valkey_url) as redis:
        budget = DeletionBudget(redis)
        owner = OwnerLimits(uid="u", clusters=100, objects=100, percent=30, on_record=20)
        decisions = [
            (await budget.spend(owner, [deletion, *again], allowed=50)).decision
            for n in range(8)
            for again in ([], [Deletion(cluster="c", object="0", is_recreated=True)])
            for deletion in [Deletion(cluster="c", object=str(n), is_recreated=True)]
        ]
    assert decisions == [Decision.GRANTED] * 12 + [Decision.OWNER] * 4


async def test_d8_a_failing_template_replaces_nothing(fleet: Rig):
    fleet.fleet.join("c0")
    zone(fleet, "b", *MEMBERS[1:])
    await rounds(fleet)
    assert values(fleet) == ["a"] * 5
    assert deletions(fleet) == 0
    zone(fleet, "b")
    await rounds(fleet)
    assert fleet.resource()["status"]["held"]["objects"] == 5


async def test_d8_without_the_policy_nothing_waits_for_a_person(fleet: Rig):
    zone(fleet, "b")
    await rounds(fleet)
    fleet.edit(policy={})
    await rounds(fleet)
    assert "held" not in fleet.resource()["status"]
    assert set(fleet.states().values()) == {"Failed/Invalid"}
    fleet.edit(policy=RECREATE)
    await rounds(fleet)
    assert deletions(fleet) == 0
    assert fleet.resource()["status"]["held"]["objects"] == 5


async def test_d11_a_look_at_one_cluster_wakes_nobody_while_a_replacement_is_held(fleet: Rig):
    zone(fleet, "b")
    await rounds(fleet)
    fleet.later.clear()
    written = fleet.resource()["metadata"]["resourceVersion"]
    await fleet.repair("c1")
    assert fleet.later == {}
    assert fleet.resource()["metadata"]["resourceVersion"] == written
    assert deletions(fleet) == 0
    fleet.clusters["c1"].delete(MAPS, "default", "m")  # by hand
    await fleet.repair("c1")
    await rounds(fleet)
    assert found(fleet)["c1"][1] == "b"
    assert fleet.resource()["status"]["held"]["clusters"] == ["c0", "c2", "c3", "c4"]


async def test_d8_what_took_the_place_of_a_confirmed_object_is_not_replaced(fleet: Rig):
    policy = {**RECREATE, "conflict": "Overwrite", "fuse": {"clusters": 1}}
    fleet.edit(policy=policy)
    await fleet.reconcile()
    zone(fleet, "b")
    await rounds(fleet)
    replace_by_hand(fleet, "c1")
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, fleet.plan_hash())
    await fleet.until(lambda: values(fleet) == ["b", "by hand", "b", "b", "b"])
    await fleet.reconcile()
    assert fleet.states()["c1"] == "Held/RecreateHeld"


async def test_r4_an_old_round_does_not_replace_what_a_newer_one_has_made(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    """Two processes, one of which has lost its lease without noticing."""
    client = fleet.fleet.cluster("c1").live
    really_identify = client.accepted_uid
    uids: list[object] = []

    async def identify() -> str:  # the first round has its plan; a newer edit overtakes it
        monkeypatch.setattr(client, "accepted_uid", really_identify)
        fleet.edit(template=immutable("newer"))
        old, fleet.distributor = fleet.distributor, None  # type: ignore[assignment]
        fleet.restart()
        await fleet.until(lambda: values(fleet) == ["newer"] * 5)
        fleet.distributor = old
        uids.append(found(fleet)["c1"])
        return await really_identify()

    fleet.edit(template=immutable("older"))
    monkeypatch.setattr(client, "accepted_uid", identify)
    await fleet.reconcile()
    assert uids == [found(fleet)["c1"]]
    assert fleet.hub.get(MULTI_CLUSTER_RESOURCES, "default", "x") is not None
    await fleet.until(lambda: values(fleet) == ["newer"] * 5)


async def test_d1_a_label_that_is_not_so_live_replaces_nothing(fleet: Rig):
    spec = {"kubeconfigSecretRef": {"name": "c4", "namespace": "default"}}
    labels = {"zone": "a"}
    fleet.hub.create(CLUSTER_RESOURCE, {"metadata": {"name": "c4", "labels": labels}, "spec": spec})
    fleet.fleet.provider = "cluster"
    zone(fleet, "b", "c4")
    await rounds(fleet)
    assert deletions(fleet) == 0
    assert "labels of c4, read live" in fleet.condition("DeletionHeld")["message"]
    fleet.hub.patch(CLUSTER_RESOURCE, None, "c4", {"metadata": {"labels": {"zone": "b"}}})
    await fleet.until(lambda: values(fleet) == ["a"] * 4 + ["b"])


async def test_d11_what_a_look_at_one_cluster_finds_is_planned_by_the_round_for_all(fleet: Rig):
    fleet.restart(settled=timedelta(hours=1))
    fleet.edit(policy={**RECREATE, "conflict": "Overwrite"})
    await fleet.reconcile()
    replace_by_hand(fleet, "c4")
    await fleet.repair("c4")
    assert fleet.later.pop(("x", "")) == timedelta(), "a repair may not decide it"
    await fleet.reconcile()
    assert deletions(fleet) == 0
    assert ("x", "") in fleet.later
    await fleet.until(lambda: values(fleet) == ["a"] * 5)
    assert await DeletionBudget(fleet.redis).used() == 1
