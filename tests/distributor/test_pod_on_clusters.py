import copy
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.ownership import (
    FINALIZER,
    OWNER_ANNOTATION,
    OWNER_UID_LABEL,
    PROTECT_ANNOTATION,
    owner_of,
)
from fleetbus.reconcile import Result
from fleetbus_emulator.apiserver import Fail
from support.eventually import eventually
from support.rigs.distributor import HUB, POD, Rig

PODS = "v1/pods"
EVERYWHERE = [{"name": "t1"}, {"name": "t2"}, {"name": "t4"}]
CUSTOMIZE = [
    {
        "name": "t1",
        "action": [
            {
                "op": "replace",
                "path": "/spec/containers/0/image",
                "value": ["nginx:1.19.0-alpine"],
            }
        ],
    },
    {
        "name": "t2",
        "action": [{"op": "add", "path": "/metadata/annotations/example", "value": ["example"]}],
    },
]


def spec(clusters: Any = None, **policy: Any) -> dict[str, Any]:
    return {
        "template": copy.deepcopy(POD),
        "placement": {"clusters": EVERYWHERE if clusters is None else clusters},
        "customize": {"clusters": CUSTOMIZE},
        "policy": policy,
    }


def pod(rig: Rig, cluster: str) -> dict[str, Any]:
    return rig.get(cluster, PODS, "multicluster-pod")


def has_pod(rig: Rig, cluster: str) -> bool:
    return rig.has(cluster, PODS, "multicluster-pod")


def image(rig: Rig, cluster: str) -> str:
    return pod(rig, cluster)["spec"]["containers"][0]["image"]


async def test_t15_each_cluster_gets_its_own_pod(rig: Rig):
    resource = rig.create(**spec())
    await rig.reconcile()
    assert [image(rig, name) for name in ("t1", "t2", "t4")] == [
        "nginx:1.19.0-alpine",
        "busybox",
        "busybox",
    ]
    assert pod(rig, "t2")["metadata"]["annotations"]["example"] == "example"
    assert rig.states() == {"t1": "Applied", "t2": "Applied", "t4": "Applied"}
    assert rig.resource()["status"]["summary"]["applied"] == 3
    assert rig.condition("Applied")["status"] == "True"
    owner = owner_of(pod(rig, "t1"))
    assert owner is not None
    assert (owner.uid, owner.name, owner.cluster_name) == (resource["metadata"]["uid"], "x", HUB)
    assert pod(rig, "t1")["metadata"]["labels"][OWNER_UID_LABEL] == resource["metadata"]["uid"]


async def test_t15_leaving_and_returning_to_the_placement(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    uids = [pod(rig, name)["metadata"]["uid"] for name in ("t1", "t2")]
    rig.edit(placement={"clusters": EVERYWHERE[:2]})
    await rig.until(lambda: not has_pod(rig, "t4"))
    assert [pod(rig, name)["metadata"]["uid"] for name in ("t1", "t2")] == uids
    await rig.until(lambda: "t4" not in rig.states())
    rig.edit(placement={"clusters": EVERYWHERE})
    await rig.until(lambda: has_pod(rig, "t4"))


async def test_t15_a_customize_entry_of_an_unplaced_cluster_is_ignored(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    rig.edit(placement={"clusters": EVERYWHERE[1:]})
    await rig.until(lambda: not has_pod(rig, "t1"))
    assert rig.condition("Applied")["status"] == "True"


async def test_t15_drift_is_corrected(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    rig.clusters["t2"].delete(PODS, "default", "multicluster-pod", grace=0)
    changed = {"spec": {"containers": [{**POD["spec"]["containers"][0], "image": "other"}]}}
    rig.clusters["t4"].patch(PODS, "default", "multicluster-pod", changed)
    await rig.until(lambda: has_pod(rig, "t2") and image(rig, "t4") == "busybox")


async def test_t15_a_converged_resource_writes_nothing(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    before = rig.all_writes()
    for _ in range(3):
        await rig.reconcile()
    rig.restart()
    await rig.reconcile()
    assert rig.all_writes() == before


async def test_t15_events_tell_of_changes_and_are_not_repeated(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    await rig.reconcile()
    events = rig.hub.list("v1/events", "default")
    assert [event["reason"] for event in events] == ["Applied"]
    assert "Pod default/multicluster-pod on t1, t2, t4" in events[0]["message"]


async def test_t15_deleting_the_resource_deletes_the_pods_and_keeps_other_finalizers(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    finalizers = [*rig.resource()["metadata"]["finalizers"], "example.com/other"]
    assert finalizers[0] == FINALIZER
    rig.hub.patch(
        "fleetbus.dev/v1alpha1/multiclusterresources",
        "default",
        "x",
        {"metadata": {"finalizers": finalizers}},
    )
    rig.delete()
    await rig.until(lambda: rig.resource()["metadata"]["finalizers"] == ["example.com/other"])
    assert not any(has_pod(rig, name) for name in ("t1", "t2", "t4"))


async def test_t15_a_dead_cluster_holds_back_nobody(rig: Rig):
    await rig.servers.stop("t2")
    rig.create(**spec())
    result = await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t2": "Unreachable", "t4": "Applied"}
    assert result == Result(requeue_after=timedelta(minutes=10)), "the others are left alone"
    assert rig.later["x", "t2"] <= timedelta(seconds=10)
    before = rig.writes(HUB)
    again = await rig.repair("t2")
    await rig.reconcile()
    assert rig.writes(HUB) == before, "a cluster that stays down costs no status write"
    assert again is not None
    assert again.requeue_after == rig.later["x", "t2"]
    await rig.servers.start("t2")

    async def is_answered() -> bool:
        await rig.repair("t2")
        return ("x", "") in rig.later

    await eventually(is_answered)
    await rig.reconcile()
    assert rig.states()["t2"] == "Applied"


@pytest.mark.parametrize("policy", ["Abort", "Adopt", "Overwrite"])
@pytest.mark.parametrize("marked", ["not", "by another hub"])
async def test_t15_a_strangers_object(rig: Rig, policy: str, marked: str):
    stranger = copy.deepcopy(POD)
    if marked == "by another hub":
        owner = (
            '{"apiVersion":"fleetbus.dev/v1alpha1","kind":"MultiClusterResource","name":"y",'
            '"namespace":"n","uid":"u","clusterName":"h","hub":"another"}'
        )
        stranger["metadata"]["annotations"] = {OWNER_ANNOTATION: owner}
        stranger["metadata"]["labels"] = {OWNER_UID_LABEL: "u"}
    rig.clusters["t2"].create(PODS, stranger)
    before = pod(rig, "t2")
    rig.create(**spec(conflict=policy))
    await rig.reconcile()
    if policy == "Abort":
        assert pod(rig, "t2") == before
        reason = "NotOurs" if marked == "not" else "OwnedByOtherHub"
        assert rig.states() == {"t1": "Applied", "t2": f"Conflict/{reason}", "t4": "Applied"}
    else:
        assert rig.states()["t2"] == "Applied"
        assert pod(rig, "t2")["metadata"]["annotations"]["example"] == "example"
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert has_pod(rig, "t2") is (policy == "Abort")


async def test_d4_two_hubs_that_both_overwrite_never_take_turns(rig: Rig):
    rig.create(**spec(conflict="Overwrite"))
    await rig.reconcile()
    owner = (
        '{"apiVersion":"fleetbus.dev/v1alpha1","kind":"MultiClusterResource","name":"y",'
        '"namespace":"n","uid":"u","clusterName":"h","hub":"another"}'
    )
    taken = {"annotations": {OWNER_ANNOTATION: owner}, "labels": {OWNER_UID_LABEL: "u"}}
    rig.clusters["t2"].patch(PODS, "default", "multicluster-pod", {"metadata": taken})
    before = pod(rig, "t2")
    await rig.reconcile()
    await rig.reconcile()
    assert pod(rig, "t2") == before
    assert rig.states()["t2"] == "Conflict/TakenOver"


async def test_t15_a_refused_change_fails_with_the_servers_message(rig: Rig):
    rig.create(**spec())
    await rig.reconcile()
    uid = pod(rig, "t1")["metadata"]["uid"]
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states()["t1"] == "Failed/Invalid"
    assert "Pod default/multicluster-pod: " in rig.entry("t1")["message"]
    assert rig.entry("t1")["message"].endswith("(spec.policy.recreate is off)")
    assert pod(rig, "t1")["metadata"]["uid"] == uid


async def test_policy_recreate_replaces_an_immutable_object(rig: Rig):
    rig.create(**spec(recreate=True))
    await rig.reconcile()
    uid = pod(rig, "t1")["metadata"]["uid"]
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    rig.edit(template=template)
    await rig.until(
        lambda: has_pod(rig, "t1") and pod(rig, "t1")["spec"]["restartPolicy"] == "Never"
    )
    assert pod(rig, "t1")["metadata"]["uid"] != uid


async def test_policy_recreate_never_deletes_a_protected_object(rig: Rig):
    rig.create(**spec(recreate=True))
    await rig.reconcile()
    uid = pod(rig, "t1")["metadata"]["uid"]
    protect = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
    rig.clusters["t1"].patch(PODS, "default", "multicluster-pod", protect)
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states()["t1"] == "Failed/Invalid"
    assert pod(rig, "t1")["metadata"]["uid"] == uid


async def test_policy_recreate_deletes_nothing_that_is_protected_at_the_last_moment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.create(**spec(recreate=True))
    await rig.reconcile()
    uid = pod(rig, "t1")["metadata"]["uid"]
    client = rig.fleet.cluster("t1").live
    really_delete = client.delete

    async def delete(*args: Any, **options: Any) -> bool:
        protect = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
        rig.clusters["t1"].patch(PODS, "default", "multicluster-pod", protect)
        return await really_delete(*args, **options)

    monkeypatch.setattr(client, "delete", delete)
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    rig.edit(template=template)
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states()["t1"] == "Failed/Invalid"
    assert pod(rig, "t1")["metadata"]["uid"] == uid


async def test_policy_recreate_deletes_nothing_when_the_new_object_is_refused(rig: Rig):
    rig.create(**spec(recreate=True))
    await rig.reconcile()
    uid = pod(rig, "t1")["metadata"]["uid"]
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    refusal = Fail(422, reason="Invalid", message="no such pod here")
    rig.clusters["t1"].faults.add(refusal, verb="create", resource="pods")
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states()["t1"] == "Failed/Invalid"
    assert pod(rig, "t1")["metadata"]["uid"] == uid


async def test_t15_each_cluster_gets_the_image_of_its_own_customization(rig: Rig):
    images = {"t1": "nginx:1.19.0-alpine", "t2": "nginx:1.19.0-alpine", "t4": "nginx:1.17.0-alpine"}
    entries = [
        {
            "name": name,
            "action": [{"path": "/spec/containers/0/image", "op": "replace", "value": [image_of]}],
        }
        for name, image_of in images.items()
    ]
    fields: dict[str, Any] = {**spec(), "customize": {"clusters": entries}}
    rig.create(**fields)
    await rig.reconcile()
    assert {name: image(rig, name) for name in images} == images
