"""Promise 1: nothing that dies, lies or is missing ever deletes anything on a target."""

import asyncio
import contextlib
import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.clusters.leaving import LEFT_LABEL
from fleetbus.errors import KubeError, NotEngaged, ServerError
from fleetbus.kube.discovery import Discovery
from fleetbus.kube.requests import JSON, Call
from fleetbus.kube.responses import Answer
from fleetbus.ownership import FINALIZER, MULTI_CLUSTER_RESOURCES
from fleetbus.reconcile import Request
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Bases, Inventory
from fleetbus_emulator.apiserver import Abort, Fail, Hang
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

MAPS = "v1/configmaps"
WIDGET = ("example.com", "widgets", "Widget")
T1, T2, T4 = ({"name": name} for name in ("t1", "t2", "t4"))
EVERYWHERE = {"clusters": [T1, T2, T4]}


def template(name: str = "m") -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied


def where(rig: Rig, name: str = "m") -> list[str]:
    return [cluster for cluster in sorted(rig.clusters) if rig.has(cluster, MAPS, name)]


async def placed(rig: Rig, **spec: Any) -> None:
    rig.create(template=template(), placement=EVERYWHERE, **spec)
    await rig.reconcile()


def intent_of(rig: Rig) -> dict[str, Any]:
    return rig.resource()["status"]["intent"]


async def test_d2_the_intent_and_the_finalizer_are_stored_before_the_first_apply(rig: Rig):
    rig.create(template=template(), placement=EVERYWHERE)
    facts: list[tuple[bool, bool]] = []

    def look(_change: object) -> None:
        resource = rig.resource()
        names = [cluster["name"] for cluster in resource.get("status", {})["intent"]["clusters"]]
        facts.append((FINALIZER in resource["metadata"]["finalizers"], "t1" in names))

    stop = rig.clusters["t1"].subscribe(look)
    await rig.reconcile()
    stop()
    assert facts == [(True, True)]
    uid = rig.get("t1", MAPS, "m")["metadata"]["uid"]
    entry = next(cluster for cluster in intent_of(rig)["clusters"] if cluster["name"] == "t1")
    assert entry["uids"] == [uid]


def _before_intent(rig: Rig) -> None:
    rig.hub.faults.add(Abort(), verb="update", resource="multiclusterresources/status", count=1)


def _after_intent(rig: Rig) -> None:
    rig.hub.faults.add(
        Abort(after_commit=True), verb="update", resource="multiclusterresources/status", count=1
    )


def _between_apply_and_record(rig: Rig) -> None:
    for name in ("t1", "t2"):
        rig.clusters[name].faults.add(Abort(after_commit=True), verb="patch", count=1)


@pytest.mark.parametrize("point", [_before_intent, _after_intent, _between_apply_and_record])
@pytest.mark.parametrize("meanwhile", ["nothing", "t2 dropped", "deleted"])
async def test_t15_a_crash_at_any_point_leaves_nothing_over(
    rig: Rig, point: Callable[[Rig], None], meanwhile: str
):
    rig.create(template=template(), placement=EVERYWHERE)
    point(rig)
    with contextlib.suppress(KubeError):
        await rig.reconcile()
    rig.restart()
    if meanwhile == "t2 dropped":
        rig.edit(placement={"clusters": [T1, T4]})
    if meanwhile == "deleted":
        rig.delete()
    expected = {"nothing": ["t1", "t2", "t4"], "t2 dropped": ["t1", "t4"], "deleted": []}[meanwhile]
    await rig.until(lambda: where(rig) == expected)
    if meanwhile == "deleted":
        await rig.until(lambda: not rig.exists())
    else:
        await rig.until(lambda: rig.condition()["status"] == "True")
    assert not any(write.verb == "create" for name in ("t1", "t2") for write in rig.writes(name))


async def test_d5_a_stranger_of_the_same_name_survives(rig: Rig):
    await placed(rig)
    rig.clusters["t2"].delete(MAPS, "default", "m")
    rig.clusters["t2"].create(MAPS, template())
    rig.edit(placement={"clusters": [T1, T4]})
    await rig.until(lambda: "t2" not in rig.states())
    assert where(rig) == ["t1", "t2", "t4"]
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert where(rig) == ["t2"]


async def test_d7_an_unreachable_cluster_keeps_the_finalizer(rig: Rig):
    await placed(rig)
    await rig.servers.stop("t2")
    rig.delete()
    await rig.reconcile()
    assert rig.states() == {"t2": "Unreachable"}
    assert rig.condition()["reason"] == "Deleting"
    await rig.servers.start("t2")
    await rig.until(lambda: not rig.exists())
    assert where(rig) == []


async def test_d7_orphan_lets_go_of_an_unreachable_cluster(rig: Rig):
    await placed(rig, policy={"deletion": "Orphan"})
    await rig.servers.stop("t2")
    rig.delete()
    await rig.until(lambda: not rig.exists())


async def test_d7_and_t20_a_cluster_that_vanished_is_held_and_an_unjoined_one_released(rig: Rig):
    await placed(rig)
    rig.fleet.leave("t2")
    rig.edit(placement={"clusters": [T1, T4]})
    await rig.reconcile()
    assert rig.states()["t2"] == "Held/ClusterGone"
    assert any(cluster["name"] == "t2" for cluster in intent_of(rig)["clusters"])
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    record = {"name": "left-t2", "namespace": "fleetbus-clusters", "labels": {LEFT_LABEL: "t2"}}
    rig.hub.create(MAPS, {"metadata": record})
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t4": "Applied"}
    left = rig.resource()["status"]["leftBehind"]
    assert left == [{"cluster": "t2", "object": "ConfigMap default/m", "reason": "Unjoined"}]
    assert where(rig) == ["t1", "t2", "t4"]


async def test_t20_an_unjoined_cluster_that_is_still_named_stays_reported(rig: Rig):
    await placed(rig)
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    record = {"name": "left-t2", "namespace": "fleetbus-clusters", "labels": {LEFT_LABEL: "t2"}}
    rig.hub.create(MAPS, {"metadata": record})
    rig.fleet.leave("t2")
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states()["t2"] == "Waiting/UnknownCluster"
    assert rig.resource()["status"]["leftBehind"][0]["reason"] == "Unjoined"
    rig.fleet.join("t2")
    await rig.reconcile()
    assert rig.states()["t2"] == "Applied"
    assert "leftBehind" not in rig.resource()["status"]


async def test_t20_deleting_with_a_vanished_cluster_waits_until_it_is_unjoined(rig: Rig):
    await placed(rig)
    rig.fleet.leave("t2")
    rig.delete()
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states() == {"t2": "Held/ClusterGone"}
    message = rig.entry("t2")["message"]
    assert (
        f"create a ConfigMap in namespace fleetbus-clusters with the label {LEFT_LABEL}=t2"
        in message
    )
    rig.hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    record = {"name": "left-t2", "namespace": "fleetbus-clusters", "labels": {LEFT_LABEL: "t2"}}
    rig.hub.create(MAPS, {"metadata": record})
    await rig.until(lambda: not rig.exists())
    assert where(rig) == ["t2"]


async def test_nothing_is_concluded_before_the_fleet_is_known(rig: Rig):
    await placed(rig)
    rig.fleet.is_known = False
    with pytest.raises(NotEngaged):
        await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]


async def test_a_resource_outside_the_hub_is_nobodys_order(rig: Rig):
    request = Request("distributor", "t1", "default", "x")
    assert await rig.distributor.reconcile(request, rig.fleet) is None


async def test_d1_a_hub_that_cannot_be_read_changes_nothing(rig: Rig):
    await placed(rig)
    before = sum(len(rig.writes(name)) for name in ("t1", "t2"))
    rig.hub.faults.add(Fail(503), verb="get", resource="multiclusterresources", count=1)
    with pytest.raises(KubeError):
        await rig.reconcile()
    assert sum(len(rig.writes(name)) for name in ("t1", "t2")) == before


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"policy": {"suspend": True}}, "Suspended", "spec.policy.suspend"),
        ({"vars": {"a b": 1}}, "InvalidSpec", "spec.vars"),
    ],
)
async def test_a_spec_that_is_not_followed_says_so_and_changes_nothing(
    rig: Rig, spec: dict[str, Any], reason: str, message: str
):
    await placed(rig)
    rig.edit(**spec)
    await rig.reconcile()
    assert rig.condition()["reason"] == reason
    assert message in rig.condition()["message"]
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.resource()["status"]["clusters"][0]["state"] == "Applied"
    before = rig.all_writes()
    await rig.reconcile()
    assert rig.all_writes() == before


async def test_d2_an_intent_that_would_outgrow_every_record_is_refused_before_the_first_apply(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(intent, "MAX_BYTES", 300)
    monkeypatch.setattr(intent, "MAX_PARTS", 0)
    rig.create(template=template(), placement=EVERYWHERE)
    await rig.reconcile()
    assert rig.condition()["reason"] == "IntentUnusable"
    assert "1 objects on 3 clusters are more than" in rig.condition()["message"]
    assert where(rig) == []
    rig.edit(placement={"clusters": [T1]})
    await rig.reconcile()
    assert where(rig) == ["t1"]


async def test_d2_a_status_that_cannot_hold_the_intent_stops_no_slow_cluster(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.clusters["t2"].faults.add(Hang(), verb="patch")
    rig.create(template=template(), placement=EVERYWHERE)
    refused: list[object] = []
    really_write = intent.write

    def write(inventory: Inventory, bases: Bases) -> dict[str, Any]:
        if "intent" not in rig.resource().get("status", {}):
            return really_write(inventory, bases)
        refused.append(inventory)
        raise IntentError("too large")

    monkeypatch.setattr(intent, "write", write)
    running = asyncio.create_task(rig.reconcile())
    await eventually(lambda: refused)
    await asyncio.wait({running}, timeout=0.05)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_damaged_intent_stops_everything(rig: Rig):
    await placed(rig)
    damaged = {"status": {"intent": {"objects": [], "clusters": [{"name": "t1", "objects": [4]}]}}}
    rig.hub.patch(MULTI_CLUSTER_RESOURCES, "default", "x", damaged, subresource="status")
    rig.edit(placement={"clusters": [T1]})
    await rig.reconcile()
    assert rig.condition()["reason"] == "IntentUnusable"
    assert where(rig) == ["t1", "t2", "t4"]


@pytest.mark.slow
async def test_t21_a_cluster_that_never_answers_holds_back_nobodys_status(rig: Rig):
    rig.clusters["t2"].faults.add(Hang())
    rig.create(template=template(), placement=EVERYWHERE)
    async with asyncio.timeout(10):  # a request may take 30 s
        await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t2": "Unreachable/Timeout", "t4": "Applied"}
    assert rig.later["x", "t2"] == timedelta(seconds=5)


@pytest.mark.slow
async def test_t21_a_cluster_that_takes_long_holds_back_nobodys_status(rig: Rig):
    rig.clusters["t2"].faults.add(Hang(), verb="patch")
    rig.create(template=template(), placement=EVERYWHERE)
    rig.restart(status_after=timedelta(seconds=1.5))  # the others may be no faster
    running = asyncio.create_task(rig.reconcile())
    await eventually(
        lambda: (
            "status" in rig.resource()
            and "clusters" in rig.resource()["status"]
            and rig.states() == {"t1": "Applied", "t2": "Waiting/InProgress", "t4": "Applied"}
        )
    )
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_t21_a_cluster_that_fails_one_request_is_tried_again(rig: Rig):
    rig.clusters["t2"].faults.add(Fail(500), verb="patch", count=1)
    await placed(rig)
    assert rig.states()["t2"] == "Failed/ServerError"
    await rig.reconcile()
    assert rig.states()["t2"] == "Applied"


async def test_d9_a_missing_type_waits_and_its_siblings_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.kube.discovery.REFRESH", timedelta(milliseconds=100))
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    rig.create(templates=[widget, template()], placement={"clusters": [T1]})
    await rig.reconcile()
    assert rig.states() == {"t1": "Waiting/NoMatch"}
    assert where(rig) == ["t1"]
    rig.clusters["t1"].create(CRDS, definition(*WIDGET))
    await rig.until(lambda: rig.states() == {"t1": "Applied"})
    assert rig.has("t1", "example.com/v1/widgets", "w")


async def with_widget(rig: Rig) -> None:
    """A Widget was applied as v1beta1, and later the cluster serves it as v1 only."""
    rig.clusters["t1"].create(CRDS, definition(*WIDGET, "v1beta1", "v1"))
    widget = {"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "w"}}
    rig.create(templates=[widget, template()], placement={"clusters": [T1]})
    await rig.reconcile()
    assert rig.has("t1", "example.com/v1/widgets", "w")
    found = rig.get("t1", CRDS, "widgets.example.com", "")
    found["spec"]["versions"][0]["served"] = False
    rig.clusters["t1"].update(CRDS, found)


@pytest.mark.parametrize("is_known", [True, False])
async def test_d9_an_object_whose_version_is_no_longer_served_is_deleted_in_another(
    rig: Rig, is_known: bool
):
    await with_widget(rig)
    if is_known:
        await rig.fleet.cluster("t1").live.discovery.refresh()
    rig.edit(templates=[template()])
    await rig.until(lambda: rig.states() == {"t1": "Applied"})
    assert not rig.has("t1", "example.com/v1/widgets", "w")
    assert [obj["kind"] for obj in intent_of(rig)["objects"]] == ["ConfigMap"]


async def test_d9_an_object_stays_on_record_while_any_version_of_its_group_is_unknown(rig: Rig):
    await with_widget(rig)
    client = rig.fleet.cluster("t1").live

    async def exchange(call: Call) -> Answer:
        if call.path == "/apis/example.com/v1":
            raise ServerError(503, "ServiceUnavailable", "the API server of this group is down")
        return await client.exchange(call._replace(accept=JSON))

    client.discovery = Discovery(exchange)
    rig.edit(templates=[template()])
    await rig.reconcile()
    assert rig.states() == {"t1": "Failed/DeleteFailed"}
    assert "example.com/v1 cannot be discovered" in rig.entry("t1")["message"]
    assert [obj["kind"] for obj in intent_of(rig)["objects"]] == ["ConfigMap", "Widget"]


@pytest.mark.parametrize(("policy", "state"), [("Report", "Drifted"), ("Ignore", "Applied")])
async def test_d13_drift_that_is_not_to_be_corrected(rig: Rig, policy: str, state: str):
    await placed(rig, policy={"drift": policy})
    rig.clusters["t2"].patch(MAPS, "default", "m", {"data": {"k": "changed"}})
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states()["t2"] == state
    assert rig.get("t2", MAPS, "m")["data"] == {"k": "changed"}
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    assert rig.get("t2", MAPS, "m")["data"] == {"k": "v"}


async def test_d12_a_set_is_applied_in_order_and_deleted_in_reverse(rig: Rig):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0},
    }
    rig.create(templates=[pod, template(), account], placement={"clusters": [T1]})
    await rig.reconcile()
    order = [write.path.rpartition("/")[2] for write in rig.writes("t1")]
    assert order == ["sa", "m", "p"]
    rig.delete()
    await rig.until(lambda: not rig.exists())
    deletes = [
        write.path.rpartition("/")[2] for write in rig.writes("t1") if write.method == "DELETE"
    ]
    assert list(dict.fromkeys(deletes)) == ["p", "m", "sa"]


async def test_a_namespace_of_a_template_is_released_not_deleted(rig: Rig):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}}
    rig.create(templates=[namespace, template()], placement={"clusters": [T1]})
    await rig.reconcile()
    rig.edit(templates=[template()])
    await rig.reconcile()
    kept = rig.get("t1", "v1/namespaces", "ours", "")
    assert kept["metadata"].get("annotations", {}) == {}
    assert rig.resource()["status"]["leftBehind"][0]["reason"] == "NamespaceKept"


async def test_d10_a_definition_of_a_template_stays_until_nobody_has_an_object_of_it(rig: Rig):
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        **definition(*WIDGET),
    }
    rig.create(templates=[crd, template()], placement={"clusters": [T1]})
    await rig.until(lambda: rig.states() == {"t1": "Applied"})
    rig.clusters["t1"].create("example.com/v1/widgets", {"metadata": {"name": "theirs"}}, "default")
    rig.edit(templates=[template()])
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states() == {"t1": "Held/InstancesExist"}
    assert rig.has("t1", "example.com/v1/widgets", "theirs")
    rig.clusters["t1"].delete("example.com/v1/widgets", "default", "theirs")
    await rig.until(lambda: not rig.has("t1", CRDS, "widgets.example.com", ""))


async def test_values_differ_per_cluster_by_substitution(rig: Rig):
    rig.fleet.join("t1", region="eu")
    rig.fleet.join("t2", region="us")
    config = template()
    config["data"] = {"where": "${cluster.name}/${cluster.labels.region}", "text": "${vars.text}"}
    rig.create(template=config, placement={"clusters": [T1, T2, T4]}, vars={"text": "hello"})
    await rig.reconcile()
    assert rig.get("t1", MAPS, "m")["data"] == {"where": "t1/eu", "text": "hello"}
    assert rig.get("t2", MAPS, "m")["data"] == {"where": "t2/us", "text": "hello"}
    assert rig.states()[HUB] == "Failed/RenderFailed"
    assert "no label 'region'" in rig.entry(HUB)["message"]
