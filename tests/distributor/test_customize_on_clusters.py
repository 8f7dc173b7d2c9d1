import copy
from typing import Any

import pytest

from fleetbus.kube.client import KubeClient
from fleetbus.ownership import OWNER_ANNOTATION
from support.rigs.distributor import CONFIG_MAP, Rig

DEPLOYMENTS = "apps/v1/deployments"
NAME = "multiclusterresource-deployment"
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": NAME, "namespace": "default", "labels": {"app": "example"}},
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "example"}},
        "template": {
            "metadata": {"labels": {"app": "example"}},
            "spec": {
                "containers": [
                    {
                        "name": "example-container",
                        "image": "nginx:latest",
                        "ports": [{"containerPort": 80}],
                    }
                ]
            },
        },
    },
}
IMAGE = "/spec/template/spec/containers/0/image"
EVERYWHERE = {"clusters": [{"name": "t1"}, {"name": "t2"}, {"name": "t4"}]}


def action(op: str, path: str, *value: Any, **fields: Any) -> dict[str, Any]:
    """An action with a value, if one is given."""
    return {"op": op, "path": path, **({"value": value[0]} if value else {}), **fields}


T16 = [
    {
        "name": "t1",
        "action": [
            action("remove", "/metadata/labels/app", ["example"]),
            action("replace", IMAGE, ["nginx:1.19.0-alpine"]),
            action("replace", "/spec/replicas", [2]),
        ],
    },
    {
        "name": "t2",
        "action": [
            action("add", "/metadata/annotations", ["foo=bar"]),
            action("replace", "/spec/replicas", [1]),
        ],
    },
    {
        "name": "t4",
        "action": [
            action("add", "/metadata/annotations", ["app=bar"]),
            action("replace", IMAGE, ["nginx:1.19.0-alpine"]),
        ],
    },
]


def create(rig: Rig, entries: list[dict[str, Any]], template: dict[str, Any] = DEPLOYMENT) -> None:
    rig.create(
        template=copy.deepcopy(template), placement=EVERYWHERE, customize={"clusters": entries}
    )


def deployment(rig: Rig, cluster: str) -> dict[str, Any]:
    return rig.get(cluster, DEPLOYMENTS, NAME)


def live(rig: Rig, cluster: str) -> KubeClient:
    return rig.fleet.cluster(cluster).live


async def test_t16_a_deployment_that_differs_per_cluster(rig: Rig):
    create(rig, T16)
    await rig.reconcile()
    deployments = {name: deployment(rig, name) for name in ("t1", "t2", "t4")}
    assert [one["spec"]["replicas"] for one in deployments.values()] == [2, 1, 3]
    images = [
        one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments.values()
    ]
    assert images == ["nginx:1.19.0-alpine", "nginx:latest", "nginx:1.19.0-alpine"]
    assert "app" not in deployments["t1"]["metadata"]["labels"]
    assert deployments["t2"]["metadata"]["annotations"]["foo"] == "bar"
    assert deployments["t4"]["metadata"]["annotations"]["app"] == "bar"
    assert OWNER_ANNOTATION in deployments["t2"]["metadata"]["annotations"]


async def test_t16_generations_stay_constant(rig: Rig):
    create(rig, T16)
    await rig.reconcile()
    before = rig.all_writes()
    for _ in range(3):
        await rig.reconcile()
    assert rig.all_writes() == before
    assert [deployment(rig, name)["metadata"]["generation"] for name in ("t1", "t2")] == [1, 1]


async def test_t16_a_default_can_be_replaced_and_a_second_container_is_added_once(rig: Rig):
    second = {"name": "second", "image": "busybox"}
    actions = [
        action("replace", "/spec/revisionHistoryLimit", [3]),
        action("add", "/spec/template/spec/containers/-", second),
    ]
    create(rig, [{"name": "t1", "action": actions}])
    await rig.reconcile()
    await rig.reconcile()
    spec = deployment(rig, "t1")["spec"]
    assert spec["revisionHistoryLimit"] == 3
    names = [container["name"] for container in spec["template"]["spec"]["containers"]]
    assert sorted(names) == ["example-container", "second"]


async def test_t16_a_patch_that_does_not_fit_fails_that_cluster_and_no_other(rig: Rig):
    create(rig, [{"name": "t1", "action": [action("remove", "/spec/nope")]}])
    await rig.reconcile()
    assert rig.states() == {"t1": "Failed/PatchFailed", "t2": "Applied", "t4": "Applied"}
    assert "/spec/nope" in rig.entry("t1")["message"]
    assert not rig.has("t1", DEPLOYMENTS, NAME)


async def test_d1_a_patch_that_does_not_fit_prunes_nothing(rig: Rig):
    create(rig, [])
    await rig.reconcile()
    rig.edit(
        placement={"clusters": [{"name": "t1"}]},
        customize={"clusters": [{"name": "t1", "action": [action("remove", "/spec/nope")]}]},
    )
    await rig.reconcile()
    assert all(rig.has(name, DEPLOYMENTS, NAME) for name in ("t1", "t2", "t4"))
    assert rig.states()["t2"] == "Held/RenderFailed"


async def test_t16_another_managers_replicas_are_a_conflict_until_they_are_handed_over(rig: Rig):
    create(rig, [])
    await rig.reconcile()
    patch = {"spec": {"replicas": 7}}
    await live(rig, "t2").patch(DEPLOYMENTS, "default", NAME, patch, field_manager="autoscaler")
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t2": "Conflict/FieldConflict", "t4": "Applied"}
    message = rig.entry("t2")["message"]
    assert "autoscaler" in message
    assert ".spec.replicas" in message
    assert deployment(rig, "t2")["spec"]["replicas"] == 7
    template = copy.deepcopy(DEPLOYMENT)
    del template["spec"]["replicas"]
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states()["t2"] == "Applied"
    assert deployment(rig, "t2")["spec"]["replicas"] == 7


async def test_d6_a_field_that_another_manager_applies_is_never_forced(rig: Rig):
    create(rig, [])
    await rig.reconcile()
    other = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"minReadySeconds": 5, "paused": True},
    }
    await live(rig, "t2").apply(DEPLOYMENTS, other, field_manager="other", force=True)
    template = copy.deepcopy(DEPLOYMENT)
    template["spec"]["minReadySeconds"] = 9
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states()["t2"] == "Conflict/FieldConflict"
    assert (
        "drop the field from the template to leave it to other, or set spec.policy.conflict:"
        " Overwrite to take over"
    ) in rig.entry("t2")["message"]
    assert deployment(rig, "t2")["spec"]["minReadySeconds"] == 5
    rig.edit(policy={"conflict": "Overwrite"})
    await rig.reconcile()
    assert deployment(rig, "t2")["spec"]["minReadySeconds"] == 9


async def test_d3_fields_of_others_survive_and_cause_no_writes(rig: Rig):
    create(rig, [])
    await rig.reconcile()
    patch = {"metadata": {"annotations": {"theirs": "x"}}, "spec": {"minReadySeconds": 4}}
    rig.clusters["t2"].patch(DEPLOYMENTS, "default", NAME, patch)
    status = {"status": {"replicas": 3}}
    rig.clusters["t2"].patch(DEPLOYMENTS, "default", NAME, status, subresource="status")
    before = rig.all_writes()
    await rig.reconcile()
    assert rig.all_writes() == before
    template = copy.deepcopy(DEPLOYMENT)
    template["spec"]["replicas"] = 4
    rig.edit(template=template)
    await rig.reconcile()
    found = deployment(rig, "t2")
    assert found["spec"]["replicas"] == 4
    assert found["spec"]["minReadySeconds"] == 4
    assert found["metadata"]["annotations"]["theirs"] == "x"


@pytest.mark.parametrize(
    ("api_version", "kind", "resource", "namespace"),
    [
        ("networking.k8s.io/v1", "Ingress", "networking.k8s.io/v1/ingresses", "default"),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "networking.k8s.io/v1/networkpolicies",
            "default",
        ),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", "", ""),
    ],
)
async def test_t16_any_kind(rig: Rig, api_version: str, kind: str, resource: str, namespace: str):
    template = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "any", "annotations": {"k": "v"}},
    }
    if kind != "ClusterRole":
        template["spec"] = {"podSelector": {}} if kind == "NetworkPolicy" else {}
    patches = [{"name": "t1", "action": [action("replace", "/metadata/annotations/k", "t1")]}]
    create(rig, patches, template)
    await rig.reconcile()
    await rig.reconcile()
    resource = resource or "rbac.authorization.k8s.io/v1/clusterroles"
    assert rig.states()["t1"] == "Applied"
    assert rig.get("t1", resource, "any", namespace)["metadata"]["annotations"]["k"] == "t1"
    assert rig.get("t2", resource, "any", namespace)["metadata"]["annotations"]["k"] == "v"
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert not rig.has("t1", resource, "any", namespace)


async def test_t16_a_renamed_object_is_applied_first_and_the_old_one_deleted_then(rig: Rig):
    create(rig, [])
    await rig.reconcile()
    template = copy.deepcopy(DEPLOYMENT)
    template["metadata"]["name"] = "renamed"
    rig.edit(template=template)
    await rig.until(
        lambda: not any(rig.has(name, DEPLOYMENTS, NAME) for name in ("t1", "t2", "t4"))
    )
    assert all(rig.has(name, DEPLOYMENTS, "renamed") for name in ("t1", "t2", "t4"))
    verbs = [(write.method, write.path.rpartition("/")[2]) for write in rig.writes("t1")]
    assert verbs.index(("PATCH", "renamed")) < verbs.index(("DELETE", NAME))


TEXT = "property.1=value-1\nproperty.2=value-2\nproperty.3=value-3\n"
T17 = {
    **CONFIG_MAP,
    "metadata": {"name": "multiclusterresource-configmap", "namespace": "default"},
    "data": {
        "example.property.1": "hello",
        "example.property.2": "world",
        "example.property.file": TEXT,
    },
}


def data(rig: Rig, cluster: str) -> dict[str, str]:
    return rig.get(cluster, "v1/configmaps", "multiclusterresource-configmap")["data"]


async def test_t17_a_configmap_that_differs_per_cluster(rig: Rig):
    value = ["patch-configmaps-test"]
    actions = [
        action("replace", "/data/example.property.1", value),
        action("add", "/data/cluster1test", value),
    ]
    create(rig, [{"name": "t1", "action": actions}], T17)
    await rig.reconcile()
    assert data(rig, "t1") == {
        "example.property.1": "patch-configmaps-test",
        "example.property.2": "world",
        "example.property.file": TEXT,
        "cluster1test": "patch-configmaps-test",
    }
    assert data(rig, "t2") == data(rig, "t4") == T17["data"]
    plain = action("replace", "/data/example.property.file", "a=b=c\nd=e")
    rig.edit(customize={"clusters": [{"name": "t1", "action": [plain]}]})
    await rig.reconcile()
    assert data(rig, "t1")["example.property.file"] == "a=b=c\nd=e"
    rig.edit(customize=None)
    await rig.reconcile()
    assert data(rig, "t1") == T17["data"]


async def test_a_warning_tells_that_a_list_value_lost_text(rig: Rig):
    create(rig, [{"name": "t1", "action": [action("add", "/data", ["a=b=c"])]}], T17)
    await rig.reconcile()
    assert data(rig, "t1") == {"a": "b"}
    warning = rig.condition("Warning")
    assert warning["status"] == "True"
    assert "second '=' of a" in warning["message"]
    rig.edit(customize=None)
    await rig.reconcile()
    assert rig.condition("Warning")["status"] == "False"


async def test_a_change_for_an_absent_cluster_is_named_and_changes_nothing(rig: Rig):
    place: dict[str, Any] = {"template": CONFIG_MAP, "placement": EVERYWHERE}
    rig.create(**place)
    await rig.reconcile()
    versions = [rig.get(c, "v1/configmaps", "m")["metadata"] for c in ("t1", "t2", "t4")]
    entries = [
        {"name": name, "action": [action("add", "/data/k", "other")]}
        for name in ("t1-x", "elsewhere")
    ]
    rig.edit(customize={"clusters": entries})
    await rig.reconcile()
    assert rig.states() == dict.fromkeys(("t1", "t2", "t4"), "Applied")
    after = [rig.get(c, "v1/configmaps", "m")["metadata"] for c in ("t1", "t2", "t4")]
    assert after == versions
    warning = rig.condition("Warning")
    assert (warning["status"], warning["reason"]) == ("True", "NoSuchCluster")
    assert warning["message"] == (
        "spec.customize.clusters[0].name: no cluster of the fleet is 't1-x' (did you mean 't1'?); "
        "spec.customize.clusters[1].name: no cluster of the fleet is 'elsewhere'"
    )
    rig.edit(customize=None)
    await rig.reconcile()
    assert rig.condition("Warning")["status"] == "False"
