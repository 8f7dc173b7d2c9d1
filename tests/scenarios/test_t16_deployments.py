"""T16: a Deployment that is customized per cluster, and who owns its fields."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleetbus.ownership import OWNER_ANNOTATION
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.distribution import (
    EVERYWHERE,
    HUB,
    IN_FULL,
    OBSERVED,
    Distribution,
    distribution,
)
from support.rigs.fleet import RESOURCES, Rig
from support.rigs.scenario import WITHIN

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
Object = dict[str, Any]
DEPLOYMENTS = "apps/v1/deployments"
NAME = "multiclusterresource-deployment"
IMAGE = "/spec/template/spec/containers/0/image"
EVERYBODY = ["t1", "t2", HUB]
CONTAINER: Object = {
    "name": "example-container",
    "image": "nginx:latest",
    "ports": [{"containerPort": 80}],
}
DEPLOYMENT: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": NAME, "namespace": "default", "labels": {"app": "example"}},
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "example"}},
        "template": {
            "metadata": {"labels": {"app": "example"}},
            "spec": {"containers": [CONTAINER]},
        },
    },
}
WIDGETS = "examples.fleetbus.dev/v1/foos"
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "foos.examples.fleetbus.dev"},
    "spec": {
        "group": "examples.fleetbus.dev",
        "scope": "Cluster",
        "names": {"plural": "foos", "singular": "foo", "kind": "Foo"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def action(op: str, path: str, *value: Any, **fields: Any) -> Object:
    return {"op": op, "path": path, **({"value": value[0]} if value else {}), **fields}


CUSTOMIZE = [
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
        "name": HUB,
        "action": [
            action("add", "/metadata/annotations", ["app=bar"]),
            action("replace", IMAGE, ["nginx:1.19.0-alpine"]),
        ],
    },
]


def spec(*entries: Object, template: Object = DEPLOYMENT) -> Object:
    return {
        "template": copy.deepcopy(template),
        "placement": EVERYWHERE,
        "customize": {"clusters": list(entries)},
    }


def on_t1(*actions: Object) -> Object:
    return {"clusters": [{"name": "t1", "action": list(actions)}]}


def found(d: Distribution, cluster: str = "t1") -> Object:
    return d.get(cluster, DEPLOYMENTS, NAME)


def containers(d: Distribution, cluster: str = "t1") -> list[Object]:
    return found(d, cluster)["spec"]["template"]["spec"]["containers"]


async def test_t16_a_deployment_differs_per_cluster_and_does_not_flap(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        d.create(**spec(*CUSTOMIZE))
        await d.applied()
        deployments = {name: found(d, name) for name in EVERYBODY}
        assert [deployment["spec"]["replicas"] for deployment in deployments.values()] == [2, 1, 3]
        images = [containers(d, name)[0]["image"] for name in EVERYBODY]
        assert images == ["nginx:1.19.0-alpine", "nginx:latest", "nginx:1.19.0-alpine"]
        assert "app" not in deployments["t1"]["metadata"]["labels"]
        for name, key, value in (("t2", "foo", "bar"), (HUB, "app", "bar")):
            annotations = deployments[name]["metadata"]["annotations"]
            assert annotations[key] == value
            assert OWNER_ANNOTATION in annotations
        await d.stays_quiet(OBSERVED)
        generations = d.of(lambda obj: obj["metadata"]["generation"], DEPLOYMENTS, NAME)
        assert generations == {n: obj["metadata"]["generation"] for n, obj in deployments.items()}

        # Renamed: the new one is there before the old one goes.
        template = copy.deepcopy(DEPLOYMENT)
        template["metadata"]["name"] = "renamed"
        d.edit(template=template)
        await eventually(lambda: d.where(DEPLOYMENTS, NAME) == [], WITHIN)
        assert d.where(DEPLOYMENTS, "renamed") == EVERYBODY
        await d.applied()
        for name in EVERYBODY:
            order = [(write.method, write.path.rpartition("/")[2]) for write in d.writes(name)]
            assert order.index(("PATCH", "renamed")) < order.index(("DELETE", NAME))
        await d.close(deleted=[f"{name} {NAME}" for name in EVERYBODY])


async def test_t16_values_of_patches_have_the_forms_of_the_seed_and_plain_json(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        d.create(**spec())
        await d.applied()
        second = {"name": "second", "image": "busybox"}
        environment = "/spec/template/spec/containers/0/env"
        entries = {"name": "A", "value": "a=b"}
        d.edit(
            customize=on_t1(
                action("replace", "/spec/revisionHistoryLimit", [3]),  # a default of the server
                action("add", "/spec/template/spec/containers/-", second),
                action("add", "/metadata/annotations", ["one=1", "two=2"]),
                action("add", "/metadata/annotations/plain", "x=y"),
                action("add", environment, [[entries]]),  # a list that is meant literally
                action("copy", "/metadata/labels/copied", **{"from": "/metadata/labels/app"}),
                action("move", "/metadata/labels/moved", **{"from": "/metadata/labels/app"}),
            )
        )
        await d.applied()
        deployment = found(d)
        assert deployment["spec"]["revisionHistoryLimit"] == 3
        assert sorted(container["name"] for container in containers(d)) == [
            "example-container",
            "second",
        ]
        annotations = deployment["metadata"]["annotations"]
        assert [annotations[key] for key in ("one", "two", "plain")] == ["1", "2", "x=y"]
        (first,) = [
            container for container in containers(d) if container["name"] == "example-container"
        ]
        assert first["env"] == [entries]
        labels = deployment["metadata"]["labels"]
        assert (labels["copied"], labels["moved"]) == ("example", "example")
        assert "app" not in labels
        await d.stays_quiet()  # the second container is not added again

        d.edit(customize=on_t1(action("remove", "/spec/nope")))
        await d.has_states(t1="Failed/PatchFailed", t2="Applied", t4="Applied")
        assert "/spec/nope" in d.entry("t1")["message"]
        assert found(d)["spec"] == deployment["spec"], "what cannot be rendered stays as it is"
        d.edit(customize=None)
        await d.applied()
        assert [container["name"] for container in containers(d)] == ["example-container"]
        assert found(d)["spec"]["revisionHistoryLimit"] == 10
        await d.close()


async def test_t16_a_field_of_another_manager_is_a_conflict_until_it_is_handed_over(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        d.create(**spec())
        await d.applied()
        await d.rig.synced("apps/deployments")
        t2 = d.rig.clusters["t2"]
        t2.patch(DEPLOYMENTS, "default", NAME, {"spec": {"replicas": 7}}, manager="autoscaler")
        await d.has_states(t1="Applied", t2="Conflict/FieldConflict", t4="Applied")
        assert "autoscaler" in d.entry("t2")["message"]
        assert ".spec.replicas" in d.entry("t2")["message"]
        assert found(d, "t2")["spec"]["replicas"] == 7
        template = copy.deepcopy(DEPLOYMENT)
        del template["spec"]["replicas"]
        d.edit(template=template)
        await d.applied()
        assert found(d, "t2")["spec"]["replicas"] == 7, "it is the autoscaler's now"

        # What another manager applies is taken only with the policy that says so.
        foreign = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}}
        applied = {**foreign, "spec": {"minReadySeconds": 5}}
        t2.apply(DEPLOYMENTS, applied, manager="other", force=True)
        template["spec"]["minReadySeconds"] = 9
        d.edit(template=template)
        await d.has_states(t1="Applied", t2="Conflict/FieldConflict", t4="Applied")
        assert '"other"' in d.entry("t2")["message"]
        assert found(d, "t2")["spec"]["minReadySeconds"] == 5
        d.edit(policy={"conflict": "Overwrite"})
        await d.applied()
        assert found(d, "t2")["spec"]["minReadySeconds"] == 9
        await d.close()


async def test_t16_any_kind_can_be_customized(open_rig: Open) -> None:
    ingress: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "any", "annotations": {"k": "v"}},
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}},
    }
    policy: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "any", "annotations": {"k": "v"}},
        "spec": {"podSelector": {}},
    }
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "any", "annotations": {"k": "v"}},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    foo: Object = {
        "apiVersion": "examples.fleetbus.dev/v1",
        "kind": "Foo",
        "metadata": {"name": "any", "annotations": {"k": "v"}},
    }
    kinds: dict[str, Object] = {
        "networking.k8s.io/v1/ingresses": ingress,
        "networking.k8s.io/v1/networkpolicies": policy,
        "rbac.authorization.k8s.io/v1/clusterroles": role,
        WIDGETS: foo,
    }
    watched = (*RESOURCES, "networking.k8s.io/v1/ingresses")
    async with distribution(open_rig, resources=watched) as d:
        for cluster in d.rig.clusters.values():
            cluster.create(CRDS, CRD)
        patches = [{"name": "t1", "action": [action("replace", "/metadata/annotations/k", "t1")]}]
        d.create(
            templates=list(kinds.values()), placement=EVERYWHERE, customize={"clusters": patches}
        )
        await d.applied()
        for gvr in kinds:
            marks = d.of(lambda obj: obj["metadata"]["annotations"]["k"], gvr, "any")
            assert marks == {"t1": "t1", "t2": "v", HUB: "v"}, gvr
        await d.stays_quiet()
        d.delete()
        await d.gone()
        assert not any(d.where(gvr, "any") for gvr in kinds)
        await d.close(deleted=[f"{name} any" for name in EVERYBODY for _ in kinds])
