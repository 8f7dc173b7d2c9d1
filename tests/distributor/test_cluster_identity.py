"""Who is behind a name: another cluster, a second name, an earlier member (W13, D4 to D7)."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.clusters.leaving import LEFT_LABEL, LEFT_UID, write_record
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import NotAccepted
from fleetbus.ownership import OWNER_ANNOTATION, owner_of
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

MAPS = "v1/configmaps"
T1, T2, T4 = ({"name": name} for name in ("t1", "t2", "t4"))


def template(name: str = "m") -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied


async def placed(rig: Rig) -> None:
    rig.create(template=template(), placement={"clusters": [T1, T2, T4]})
    await rig.reconcile()


async def test_w13_another_cluster_behind_the_name_is_neither_written_nor_believed(rig: Rig):
    await placed(rig)
    server = rig.clusters["t1"]
    uid, before = server.uid, len(rig.writes("t1"))
    server.delete(MAPS, "default", "m")
    server.swap_uid()
    rig.edit(template=template("n"))
    await rig.reconcile()
    assert rig.states()["t1"] == "Unreachable/NotAccepted"
    assert "fleetbus clusters accept t1" in rig.entry("t1")["message"]
    assert len(rig.writes("t1")) == before
    rig.delete()
    await rig.reconcile()
    assert rig.exists()  # what is in the other cluster says nothing about ours
    assert len(rig.writes("t1")) == before
    server.swap_uid(uid)
    await rig.until(lambda: not rig.exists())


async def test_w13_a_hub_that_was_replaced_gives_no_orders(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.kube.connection.identity.TRUSTED_FOR", timedelta())
    await placed(rig)
    rig.hub.swap_uid()
    before = rig.all_writes()
    with pytest.raises(NotAccepted):
        await rig.reconcile()
    assert rig.all_writes() == before


RECORD = {"name": "left-t2", "namespace": "fleetbus-clusters", "labels": {LEFT_LABEL: "t2"}}


async def test_d7_a_leave_record_of_an_earlier_membership_lets_go_of_nothing(rig: Rig):
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    rig.hub.create(MAPS, {"metadata": RECORD})
    await placed(rig)  # t2 is a member, so the record is of an earlier time
    assert not rig.has(HUB, MAPS, "left-t2", "fleetbus-clusters")
    rig.fleet.leave("t2")
    await rig.reconcile()
    assert rig.states()["t2"] == "Held/ClusterGone"
    assert "t2" in {cluster["name"] for cluster in rig.resource()["status"]["intent"]["clusters"]}


@pytest.mark.parametrize("uid", ["present", "earlier"])
async def test_d7_the_record_of_a_leave_under_way_stays_and_that_of_another_cluster_goes(
    rig: Rig, uid: str
):
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    reference = {"kubeconfigSecretRef": {"namespace": "x", "name": "x"}}
    cluster = rig.hub.create(CLUSTERS, {"metadata": {"name": "t2"}, "spec": reference})
    recorded = cluster["metadata"]["uid"] if uid == "present" else uid
    rig.hub.create(MAPS, {"metadata": {**RECORD, "annotations": {LEFT_UID: recorded}}})
    await placed(rig)
    assert rig.has(HUB, MAPS, "left-t2", "fleetbus-clusters") is (uid == "present")
    rig.hub.delete(CLUSTERS, "", "t2")
    rig.fleet.leave("t2")
    await rig.reconcile()
    expected = "Waiting/UnknownCluster" if uid == "present" else "Held/ClusterGone"
    assert rig.states()["t2"] == expected


async def test_d7_two_unjoins_in_a_row_release_the_objects_of_both(rig: Rig):
    rig.fleet.provider = "cluster"
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    for name in ("t1", "t2"):
        rig.fleet.join(name)
        reference = {"kubeconfigSecretRef": {"namespace": "x", "name": "x"}}
        rig.hub.create(CLUSTERS, {"metadata": {"name": name}, "spec": reference})
    await placed(rig)
    for name in ("t1", "t2"):
        cluster = rig.hub.get(CLUSTERS, None, name)
        assert cluster
        await write_record(rig.fleet.cluster(HUB).live, cluster, "fleetbus-clusters", "test")
        rig.hub.delete(CLUSTERS, None, name)
    rig.fleet.leave("t1")
    await rig.reconcile()  # this process does not know yet that t2 has left, too
    assert rig.states()["t2"] == "Applied"
    rig.fleet.leave("t2")
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert rig.has("t1", MAPS, "m")
    assert rig.has("t2", MAPS, "m")


# --- one API server under two names (D4, D5) ----------------------------------------------------


def uid_of(rig: Rig, cluster: str, name: str = "m") -> str:
    return str(rig.get(cluster, MAPS, name)["metadata"]["uid"])


def deletions(rig: Rig, cluster: str) -> list[str]:
    return [write.path for write in rig.writes(cluster) if write.verb == "delete"]


async def test_d5_what_moves_to_another_name_of_its_cluster_is_not_deleted(rig: Rig):
    rig.create(template=template(), placement={"clusters": [T2]})
    await rig.reconcile()
    uid = uid_of(rig, "t2")
    rig.fleet.rename("t2", "new")
    rig.edit(placement={"clusters": [{"name": "new"}]})
    await rig.reconcile()
    await rig.reconcile()
    assert (uid_of(rig, "t2"), deletions(rig, "t2")) == (uid, [])
    assert rig.states()["t2"] == "Held/Aliased"
    assert "in the fleet as new" in rig.entry("t2")["message"]
    rig.delete()
    await rig.reconcile()
    assert (uid_of(rig, "t2"), deletions(rig, "t2")) == (uid, [])
    assert rig.exists()


async def test_d7_policy_orphan_lets_go_of_a_cluster_with_two_names(rig: Rig):
    rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    rig.fleet.rename("t1", "other")
    rig.delete()
    await rig.reconcile()
    assert rig.states() == {"t1": "Held/Aliased"}
    assert "fleetbus unjoin" in rig.entry("t1")["message"]
    rig.edit(policy={"deletion": "Orphan"})
    await rig.reconcile()
    assert not rig.exists()
    assert rig.has("t1", MAPS, "m")


async def test_d4_the_mark_names_the_cluster_and_follows_its_new_name(rig: Rig):
    rig.create(template=template(), placement={"clusters": [T2]})
    await rig.reconcile()
    owner = owner_of(rig.get("t2", MAPS, "m"))
    assert owner is not None
    assert (owner.target, owner.target_uid) == ("t2", rig.clusters["t2"].uid)
    uid = uid_of(rig, "t2")
    rig.fleet.rename("t2", "new")
    rig.fleet.leave("t2")
    rig.edit(placement={"clusters": [{"name": "new"}]})
    await rig.reconcile()
    assert rig.states()["new"] == "Applied"
    owner = owner_of(rig.get("t2", MAPS, "m"))
    assert owner is not None
    assert owner.target == "new"
    rig.delete()
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    rig.hub.create(MAPS, {"metadata": RECORD})
    await rig.until(lambda: not rig.exists())
    assert not rig.has("t2", MAPS, "m")  # by the name that it is marked with
    assert uid


@pytest.mark.parametrize("target", ["other", "t2"])
async def test_d4_d5_an_object_that_was_marked_for_another_cluster_is_left(rig: Rig, target: str):
    rig.create(template=template(), placement={"clusters": [T2]})
    await rig.reconcile()
    restored = rig.get("t2", MAPS, "m")
    owner = owner_of(restored)
    assert owner is not None
    changed = owner.on(target, "other")
    restored["metadata"]["annotations"][OWNER_ANNOTATION] = changed.to_json()
    rig.clusters["t2"].update(MAPS, restored)
    rig.edit(template=template("n"))
    await rig.reconcile()
    assert rig.has("t2", MAPS, "m")
    assert deletions(rig, "t2") == []
    left = rig.resource()["status"]["leftBehind"]
    assert [entry["reason"] for entry in left] == ["MarkedForOtherCluster"]


async def test_d4_an_object_restored_from_another_cluster_is_a_conflict(rig: Rig):
    rig.create(template=template(), placement={"clusters": [T1]})
    await rig.reconcile()
    copied = rig.get("t1", MAPS, "m")
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        copied["metadata"].pop(field, None)
    rig.clusters["t2"].create(MAPS, copied)
    rig.edit(placement={"clusters": [T1, T2]})
    await rig.reconcile()
    assert rig.states()["t2"] == "Conflict/MarkedForOtherCluster"
    rig.edit(policy={"conflict": "Adopt"})
    await rig.reconcile()
    assert rig.states()["t2"] == "Applied"


async def test_d4_a_mark_of_before_that_names_no_target_is_ours(rig: Rig):
    rig.create(template=template(), placement={"clusters": [T2]})
    await rig.reconcile()
    older = rig.get("t2", MAPS, "m")
    owner = owner_of(older)
    assert owner is not None
    older["metadata"]["annotations"][OWNER_ANNOTATION] = owner.on("", "").to_json()
    rig.clusters["t2"].update(MAPS, older)
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert not rig.has("t2", MAPS, "m")
