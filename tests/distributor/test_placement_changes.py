from datetime import timedelta
from typing import Any

import pytest

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, PROTECT_ANNOTATION, owner_of
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_emulator.apiserver import Fail
from support.objects import config_map
from support.rigs.distributor import HUB, Rig, distributor_rig

MAPS = "v1/configmaps"
T1, T2, T4 = ({"name": name} for name in ("t1", "t2", "t4"))
PROD = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}
EVERYWHERE = {"clusters": [T1, T2, T4]}


def where(rig: Rig, name: str = "m") -> list[str]:
    return [cluster for cluster in sorted(rig.clusters) if rig.has(cluster, MAPS, name)]


async def test_t18_an_empty_placement_means_the_hub_only(rig: Rig):
    rig.create("a", template=config_map("a"))
    rig.create("b", template=config_map("b"), placement={"clusters": []})
    for name in ("a", "b"):
        await rig.reconcile(name)
        assert where(rig, name) == [HUB]


async def test_t18_an_unknown_cluster_waits_and_is_served_when_it_joins():
    async with distributor_rig("t1", "t3") as rig:
        rig.fleet.leave("t3")
        rig.create(template=config_map(), placement={"clusters": [T1, {"name": "t3"}]})
        result = await rig.reconcile()
        assert rig.states() == {"t1": "Applied", "t3": "Waiting/UnknownCluster"}
        assert result is not None
        assert result.requeue_after is not None
        assert result.requeue_after <= timedelta(seconds=10)
        rig.fleet.join("t3")
        await rig.reconcile()
        assert rig.states() == {"t1": "Applied", "t3": "Applied"}


async def test_t18_only_unknown_names_are_never_redirected(rig: Rig):
    rig.create(template=config_map(), placement={"clusters": [{"name": "nope"}]})
    await rig.reconcile()
    assert where(rig) == []
    assert rig.condition()["status"] == "False"


async def test_t18_labels_decide(valkey_url: str):
    async with distributor_rig("t1", "t2", "t3", "t5", redis_url=valkey_url) as rig:
        rig.create(template=config_map(), placement=PROD)
        await rig.reconcile()
        assert where(rig) == []
        assert rig.condition()["reason"] == "NoClusters"
        assert "`fleetbus clusters` shows their labels" in rig.condition()["message"]
        for name in ("t1", "t2", "t3", "t5"):
            rig.fleet.join(name, tier="prod")
        await rig.reconcile()
        assert where(rig) == ["t1", "t2", "t3", "t5"]
        rig.fleet.join("t2")
        await rig.until(lambda: where(rig) == ["t1", "t3", "t5"])


async def test_t18_a_template_without_a_namespace_goes_to_default(rig: Rig):
    config = config_map()
    del config["metadata"]["namespace"]
    rig.create(template=config, placement={"clusters": [T1]})
    await rig.reconcile()
    assert where(rig) == ["t1"]


async def test_t18_d10_a_missing_namespace_waits_without_a_write(rig: Rig):
    rig.create(template=config_map(namespace="far"), placement={"clusters": [T1]})
    await rig.reconcile()
    assert rig.states() == {"t1": "Waiting/NamespaceMissing"}
    assert rig.writes("t1") == []
    rig.clusters["t1"].create("v1/namespaces", {"metadata": {"name": "far"}})
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}


async def test_t18_d10_create_namespaces_makes_and_never_deletes_them(rig: Rig):
    rig.create(
        template=config_map(namespace="far"),
        placement={"clusters": [T1]},
        policy={"createNamespaces": True},
    )
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert rig.clusters["t1"].get(MAPS, "far", "m") is None
    namespace = rig.get("t1", "v1/namespaces", "far", "")
    assert owner_of(namespace) is None, "it would be an orphan from now on (rule D10)"


async def test_t18_the_fuse_holds_until_the_plan_is_confirmed(rig: Rig):
    for name in ("t1", "t2", "t4"):
        rig.fleet.join(name, tier="prod")
    rig.create(template=config_map(), placement=PROD, policy={"fuse": {"objects": 1}})
    await rig.reconcile()
    for name in ("t2", "t4"):
        rig.fleet.join(name, tier="prd")
    await rig.reconcile()
    await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.states() == {
        "t1": "Applied",
        "t2": "Held/DeletionFuse",
        "t4": "Held/DeletionFuse",
    }
    condition = rig.condition("DeletionHeld")
    hold = rig.resource()["status"]["held"]
    assert hold.pop("planHash") in condition["message"]
    assert hold.pop("nonce")
    assert hold == {"reason": "DeletionFuse", "objects": 2, "clusters": ["t2", "t4"]}
    assert CONFIRM_PRUNE_ANNOTATION in condition["message"]
    rig.annotate(CONFIRM_PRUNE_ANNOTATION, "something-else")
    await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]
    rig.annotate(CONFIRM_PRUNE_ANNOTATION, rig.plan_hash())
    await rig.until(lambda: where(rig) == ["t1"])
    await rig.until(lambda: rig.states() == {"t1": "Applied"})
    assert rig.condition("DeletionHeld")["status"] == "False"
    assert "held" not in rig.resource()["status"]
    await rig.until(lambda: not rig.resource()["metadata"].get("annotations"))


async def test_t18_an_empty_cluster_list_deletes_nothing(rig: Rig):
    rig.create(template=config_map(), placement={"clusterSelector": {}})
    await rig.reconcile()
    for name in ("t1", "t2"):
        rig.fleet.leave(name)
    await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.states()["t1"] == "Held/ClusterGone"


@pytest.mark.parametrize("names", [[], [{"name": "nope"}]])
@pytest.mark.parametrize("clusters", [["t2"], ["t1", "t2"]])
async def test_d8_a_selector_that_suddenly_matches_nothing_deletes_nothing(
    rig: Rig, names: list[dict[str, str]], clusters: list[str]
):
    for name in clusters:
        rig.fleet.join(name, tier="prod")
    rig.create(template=config_map(), placement=PROD | {"clusters": names})
    await rig.reconcile()
    for name in clusters:
        rig.fleet.join(name)
    await rig.reconcile()
    assert where(rig) == clusters
    states = {name: rig.states()[name] for name in clusters}
    assert states == dict.fromkeys(clusters, "Held/EmptySelection")


async def chosen_by_label(rig: Rig) -> None:
    """Two clusters hold the objects, and may lose half of them; one has a Cluster object."""
    labels = {"tier": "prod"}
    spec = {"kubeconfigSecretRef": {"name": "t2", "namespace": "default"}}
    rig.hub.create(CLUSTER_RESOURCE, {"metadata": {"name": "t2", "labels": labels}, "spec": spec})
    rig.fleet.provider = "cluster"
    rig.fleet.join("t1", **labels)
    rig.fleet.join("t2", **labels)
    rig.create(template=config_map(), placement=PROD, policy={"fuse": {"percent": 100}})
    await rig.reconcile()
    assert where(rig) == ["t1", "t2"]


async def test_d1_a_relabelled_cluster_is_let_go_when_its_live_labels_say_so(rig: Rig):
    await chosen_by_label(rig)
    rig.fleet.join("t2")
    result = await rig.reconcile()
    assert where(rig) == ["t1", "t2"]
    assert rig.states() == {"t1": "Applied", "t2": "Held/LabelsNotConfirmed"}
    assert "labels of t2, read live" in rig.condition("DeletionHeld")["message"]
    assert result is not None
    assert result.requeue_after is not None
    assert result.requeue_after <= timedelta(seconds=10)
    rig.hub.patch(CLUSTER_RESOURCE, None, "t2", {"metadata": {"labels": {"tier": None}}})
    await rig.until(lambda: where(rig) == ["t1"])
    assert rig.condition("DeletionHeld")["status"] == "False"


@pytest.mark.parametrize("is_gone", [True, False])
async def test_d1_labels_that_cannot_be_read_live_hold(rig: Rig, is_gone: bool):
    await chosen_by_label(rig)
    rig.fleet.join("t2")
    if is_gone:
        rig.hub.delete(CLUSTER_RESOURCE, None, "t2")
    else:
        rig.hub.faults.add(Fail(503), verb="get", resource="clusters")
    await rig.reconcile()
    assert where(rig) == ["t1", "t2"]
    assert rig.states() == {"t1": "Applied", "t2": "Held/LabelsNotConfirmed"}


async def test_d1_a_template_that_goes_needs_no_word_about_labels(rig: Rig):
    await chosen_by_label(rig)
    rig.hub.faults.add(Fail(503), verb="get", resource="clusters")
    rig.edit(template=config_map("other"))
    await rig.until(lambda: where(rig, "other") == ["t1", "t2"] and where(rig) == [])


async def test_t18_deleting_the_resource_itself_is_not_held(rig: Rig):
    rig.create(template=config_map(), placement=EVERYWHERE, policy={"fuse": {"objects": 0}})
    await rig.reconcile()
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert where(rig) == []


async def test_policy_orphan_leaves_the_objects_and_takes_the_mark_off(rig: Rig):
    rig.create(template=config_map(), placement=EVERYWHERE, policy={"deletion": "Orphan"})
    await rig.reconcile()
    rig.edit(placement={"clusters": [T1, T4]})
    await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.get("t2", MAPS, "m")["metadata"].get("labels", {}) == {}
    left = rig.resource()["status"]["leftBehind"]
    assert left == [{"cluster": "t2", "object": "ConfigMap default/m", "reason": "Orphaned"}]
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert where(rig) == ["t1", "t2", "t4"]


async def test_a_protected_object_is_never_deleted(rig: Rig):
    rig.create(template=config_map(), placement=EVERYWHERE)
    await rig.reconcile()
    mark = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
    rig.clusters["t2"].patch(MAPS, "default", "m", mark)
    rig.edit(placement={"clusters": [T1, T4]})
    await rig.until(lambda: "t2" not in rig.states())
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.resource()["status"]["leftBehind"][0]["reason"] == "Protected"


async def test_d5_an_object_that_is_protected_at_the_last_moment_is_not_deleted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.create(template=config_map(), placement=EVERYWHERE)
    await rig.reconcile()
    client = rig.fleet.cluster("t2").live
    really_delete = client.delete

    async def delete(*args: Any, **options: Any) -> bool:
        monkeypatch.setattr(client, "delete", really_delete)
        mark = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
        rig.clusters["t2"].patch(MAPS, "default", "m", mark)
        return await really_delete(*args, **options)

    monkeypatch.setattr(client, "delete", delete)
    rig.edit(placement={"clusters": [T1, T4]})
    await rig.until(lambda: "t2" not in rig.states())
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.resource()["status"]["leftBehind"][0]["reason"] == "Protected"
