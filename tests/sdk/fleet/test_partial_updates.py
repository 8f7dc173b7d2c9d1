"""Updates of what the watcher shows in part take nothing away; real transforms, real HTTP (S1)."""

from __future__ import annotations

from typing import Any

import pytest

import fleetbus
from fleetbus.kube.list_watch.listing import read_map
from fleetbus.kube.requests import Call
from fleetbus.kube.trees import read_tree
from fleetbus_watcher.transform.rules import Rule
from fleetbus_watcher.transform.transform import transform_of
from support.rigs.one_cluster import PODS, Rig
from support.stores.snapshot import Source

SECRETS = "v1/secrets"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
HIDDEN = {LAST_APPLIED: "{}"}
PASSWORD = "aHVudGVyMg=="
POD = {
    "containers": [
        {"name": "main", "image": "one", "env": [{"name": "TOKEN", "value": "hunter2"}]},
    ],
    "tolerations": [{"key": "a", "operator": "Exists"}],
}
HIDES_ENV = (Rule(resource="core/pods", drop=("spec.containers[*].env",)),)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    metadata = {"name": "web", "annotations": {**HIDDEN, "team": "a"}}
    rig.server.create(PODS, {"metadata": metadata, "spec": POD}, "prod")
    data = {"password": PASSWORD, "user": "YQ=="}
    rig.server.create(SECRETS, {"metadata": metadata, "data": data}, "prod")
    return rig


async def show(
    rig: Rig, resource: str = PODS, rules: tuple[Rule, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object as a watcher shows it, and the whole object."""
    plural = resource.partition("/")[2]
    raw = await rig.cluster.live.request(Call("GET", f"/api/v1/namespaces/prod/{plural}/web"))
    found = read_map(raw)
    body = transform_of(rules, f"core/{plural}").apply(found, read_map(found["metadata"]))
    whole = read_tree(raw)
    version, uid = whole["metadata"]["resourceVersion"], whole["metadata"]["uid"]
    event = Source(resource=plural).modified("web", version, uid=uid, body=body)
    await rig.snapshot.apply(event)
    return read_tree(body), whole


async def live(rig: Rig, resource: str = PODS) -> dict[str, Any]:
    found = await rig.cluster.live.get(resource, "prod", "web")
    assert found is not None
    return found


async def test_s1_an_update_of_what_the_snapshot_shows_leaves_what_it_does_not_show(
    rig: Rig,
) -> None:
    shown, _ = await show(rig)
    assert shown["metadata"]["annotations"] == {"team": "a"}
    shown["metadata"]["labels"] = {"app": "web"}
    shown["metadata"]["annotations"] = {"owner": "b"}
    shown["spec"]["containers"][0]["image"] = "two"
    del shown["metadata"]["uid"], shown["metadata"]["creationTimestamp"]
    answer = await rig.cluster.update(PODS, shown)
    assert answer["metadata"]["annotations"] == {**HIDDEN, "owner": "b"}
    assert answer["metadata"]["labels"] == {"app": "web"}
    assert answer["spec"]["containers"][0]["image"] == "two"
    shown, _ = await show(rig)
    del shown["metadata"]["annotations"]
    assert (await rig.cluster.update(PODS, shown))["metadata"]["annotations"] == HIDDEN


async def test_s1_an_update_of_a_secret_writes_no_mark_over_a_value(rig: Rig) -> None:
    shown, _ = await show(rig, SECRETS)
    assert shown["data"]["password"] != PASSWORD
    shown["data"]["user"] = "Yg=="
    changed = await rig.cluster.update(SECRETS, shown)
    assert changed["data"] == {"password": PASSWORD, "user": "Yg=="}
    shown, _ = await show(rig, SECRETS)
    shown["data"]["copy"] = shown["data"].pop("password")
    with pytest.raises(fleetbus.IncompleteObject, match="live"):
        await rig.cluster.update(SECRETS, shown)


@pytest.mark.parametrize("way", ["create", "apply", "patch", "update"])
async def test_s1_a_mark_is_never_written_in_place_of_a_value(rig: Rig, way: str) -> None:
    shown, _ = await show(rig, SECRETS)
    copy = {**shown, "metadata": {"name": "copy", "namespace": "prod"}}
    # An update at a version that the snapshot does not hold.
    older = {**shown, "metadata": {**shown["metadata"], "resourceVersion": "1"}}
    cluster = rig.cluster
    writes = {
        "create": lambda: cluster.create(SECRETS, copy),
        "apply": lambda: cluster.apply(SECRETS, copy),
        "patch": lambda: cluster.patch(SECRETS, "prod", "web", {"data": shown["data"]}),
        "update": lambda: cluster.update(SECRETS, older),
    }
    with pytest.raises(fleetbus.IncompleteObject, match="live"):
        await writes[way]()
    assert (await live(rig, SECRETS))["data"]["password"] == PASSWORD


async def test_s1_a_list_in_which_something_is_hidden_is_not_replaced(rig: Rig) -> None:
    shown, _ = await show(rig, rules=HIDES_ENV)
    shown["spec"]["tolerations"] = []
    changed = await rig.cluster.update(PODS, shown)
    assert "tolerations" not in changed["spec"] or not changed["spec"]["tolerations"]
    assert changed["spec"]["containers"][0]["env"] == POD["containers"][0]["env"]
    shown, _ = await show(rig, rules=HIDES_ENV)
    shown["spec"]["containers"][0]["image"] = "two"
    with pytest.raises(fleetbus.IncompleteObject, match=r"spec\.containers.*`live`.*`patch`"):
        await rig.cluster.update(PODS, shown)
    container = (await live(rig))["spec"]["containers"][0]
    assert (container["image"], container["env"]) == ("one", POD["containers"][0]["env"])


async def test_r4_an_update_of_what_was_changed_meanwhile_is_refused(rig: Rig) -> None:
    shown, whole = await show(rig)
    await rig.cluster.live.patch(PODS, "prod", "web", {"metadata": {"labels": {"a": "b"}}})
    for tree in (shown, whole):
        tree["spec"]["containers"][0]["image"] = "two"
        with pytest.raises(fleetbus.Conflict):
            await rig.cluster.update(PODS, tree)


async def test_an_object_that_was_read_live_is_replaced(rig: Rig) -> None:
    _, whole = await show(rig)
    whole["metadata"]["annotations"] = {"team": "b"}
    answer = await rig.cluster.update(PODS, whole)
    assert answer["metadata"]["annotations"] == {"team": "b"}
