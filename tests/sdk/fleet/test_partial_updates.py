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
    tree_map = read_map(raw)
    body = transform_of(rules, f"core/{plural}").apply(tree_map, read_map(tree_map["metadata"]))
    full = read_tree(raw)
    version, uid = full["metadata"]["resourceVersion"], full["metadata"]["uid"]
    event = Source(resource=plural).modified("web", version, uid=uid, body=body)
    await rig.snapshot.apply(event)
    return read_tree(body), full


async def live(rig: Rig, resource: str = PODS) -> dict[str, Any]:
    obj = await rig.cluster.live.get(resource, "prod", "web")
    assert obj is not None
    return obj


async def test_s1_an_update_of_what_the_snapshot_shows_leaves_what_it_does_not_show(
    rig: Rig,
) -> None:
    partial, _ = await show(rig)
    assert partial["metadata"]["annotations"] == {"team": "a"}
    partial["metadata"]["labels"] = {"app": "web"}
    partial["metadata"]["annotations"] = {"owner": "b"}
    partial["spec"]["containers"][0]["image"] = "two"
    del partial["metadata"]["uid"], partial["metadata"]["creationTimestamp"]
    answer = await rig.cluster.update(PODS, partial)
    assert answer["metadata"]["annotations"] == {**HIDDEN, "owner": "b"}
    assert answer["metadata"]["labels"] == {"app": "web"}
    assert answer["spec"]["containers"][0]["image"] == "two"
    partial, _ = await show(rig)
    del partial["metadata"]["annotations"]
    assert (await rig.cluster.update(PODS, partial))["metadata"]["annotations"] == HIDDEN


async def test_s1_an_update_of_a_secret_writes_no_mark_over_a_value(rig: Rig) -> None:
    partial, _ = await show(rig, SECRETS)
    assert partial["data"]["password"] != PASSWORD
    partial["data"]["user"] = "Yg=="
    changed = await rig.cluster.update(SECRETS, partial)
    assert changed["data"] == {"password": PASSWORD, "user": "Yg=="}
    partial, _ = await show(rig, SECRETS)
    partial["data"]["copy"] = partial["data"].pop("password")
    with pytest.raises(fleetbus.IncompleteObject, match="live"):
        await rig.cluster.update(SECRETS, partial)


@pytest.mark.parametrize("way", ["create", "apply", "patch", "update"])
async def test_s1_a_mark_is_never_written_in_place_of_a_value(rig: Rig, way: str) -> None:
    partial, _ = await show(rig, SECRETS)
    copy = {**partial, "metadata": {"name": "copy", "namespace": "prod"}}
    # An update at a version that the snapshot does not hold.
    older = {**partial, "metadata": {**partial["metadata"], "resourceVersion": "1"}}
    cluster = rig.cluster
    writes = {
        "create": lambda: cluster.create(SECRETS, copy),
        "apply": lambda: cluster.apply(SECRETS, copy),
        "patch": lambda: cluster.patch(SECRETS, "prod", "web", {"data": partial["data"]}),
        "update": lambda: cluster.update(SECRETS, older),
    }
    with pytest.raises(fleetbus.IncompleteObject, match="live"):
        await writes[way]()
    assert (await live(rig, SECRETS))["data"]["password"] == PASSWORD


async def test_s1_a_list_in_which_something_is_hidden_is_not_replaced(rig: Rig) -> None:
    partial, _ = await show(rig, rules=HIDES_ENV)
    partial["spec"]["tolerations"] = []
    changed = await rig.cluster.update(PODS, partial)
    assert "tolerations" not in changed["spec"] or not changed["spec"]["tolerations"]
    assert changed["spec"]["containers"][0]["env"] == POD["containers"][0]["env"]
    partial, _ = await show(rig, rules=HIDES_ENV)
    partial["spec"]["containers"][0]["image"] = "two"
    with pytest.raises(fleetbus.IncompleteObject, match=r"spec\.containers.*`live`.*`patch`"):
        await rig.cluster.update(PODS, partial)
    container = (await live(rig))["spec"]["containers"][0]
    assert (container["image"], container["env"]) == ("one", POD["containers"][0]["env"])


async def test_r4_an_update_of_what_was_changed_meanwhile_is_refused(rig: Rig) -> None:
    partial, full = await show(rig)
    await rig.cluster.live.patch(PODS, "prod", "web", {"metadata": {"labels": {"a": "b"}}})
    for tree in (partial, full):
        tree["spec"]["containers"][0]["image"] = "two"
        with pytest.raises(fleetbus.Conflict):
            await rig.cluster.update(PODS, tree)


async def test_an_object_that_was_read_live_is_replaced(rig: Rig) -> None:
    _, full = await show(rig)
    full["metadata"]["annotations"] = {"team": "b"}
    answer = await rig.cluster.update(PODS, full)
    assert answer["metadata"]["annotations"] == {"team": "b"}
