"""The objects that helm renders: an API server that checks every field accepts them."""

from __future__ import annotations

import itertools

import pytest
import yaml

from emulator.support.kube_calls import Calls
from fleetbus_emulator.apiserver import Cluster
from support.api.rendered_chart import (
    AUDIT,
    CHART,
    EU1,
    NAMESPACE,
    SHOP,
    VALUES,
    Object,
    find,
    helm,
    of_kind,
    pods,
    render,
    render_files,
)
from support.rows import each_row

OPTIONAL = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Objects of operators that the hub need not have."""
NAMES = {
    "NetworkPolicy": "networkpolicies",
    "Ingress": "ingresses",
    "CustomResourceDefinition": "customresourcedefinitions",
}
CLUSTER_SCOPED = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


LINTED = ("everything", "external", "no hub, no pool")
"""Which branches lint renders once more; an API server below checks what all of them render."""


@pytest.mark.parametrize(
    "name",
    [name if name in LINTED else pytest.param(name, marks=pytest.mark.full) for name in VALUES],
)
def test_a_strict_lint_finds_nothing(name: str):
    report = helm().lint(
        str(CHART), VALUES[name], strict=True, namespace=NAMESPACE, kube_version="v1.33.0"
    )
    # 1 is information: an icon would be nice.
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@each_row("values", VALUES.values())
def test_an_api_server_accepts_every_object_and_knows_every_field(values: Object):
    calls = Calls(Cluster("hub", seed=1))
    calls.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    calls.post("/api/v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    refused: list[str] = []
    for obj in render(values):
        if obj["kind"] in OPTIONAL or obj["metadata"]["name"] == "fleetbus-clusters":
            continue
        reply = calls.post(path_of(obj), obj, fieldValidation="Strict")
        if reply.status != 201:
            refused.append(f"{obj['kind']} {obj['metadata']['name']}: {reply.message}")
    assert refused == []


def path_of(obj: Object) -> str:
    version, kind = obj["apiVersion"], obj["kind"]
    place = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind not in CLUSTER_SCOPED:
        place += f"/namespaces/{obj['metadata'].get('namespace', NAMESPACE)}"
    return f"{place}/{NAMES.get(kind, kind.lower() + 's')}"


@each_row("values", VALUES.values())
def test_every_object_says_what_it_belongs_to(values: Object):
    for obj in render(values):
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "fleetbus", obj["metadata"]
        assert labels["app.kubernetes.io/instance"] == "fb", obj["metadata"]


def test_selectors_choose_the_pods_of_one_deployment_only():
    objects = of_kind(render(VALUES["everything"]), "Deployment", "StatefulSet")
    for first, other in itertools.product(objects, objects):
        labels = first["spec"]["selector"]["matchLabels"].items()
        chosen = labels <= other["spec"]["template"]["metadata"]["labels"].items()
        assert chosen == (first is other), (first["metadata"]["name"], other["metadata"]["name"])


def test_names_stay_short_and_distinct_however_long_the_parts_are():
    # Equal but for their end: cutting alone would make them one.
    clusters = [{**EU1, "name": "c" * 60 + end} for end in ("a", "b")]
    values = {
        "watchers": {"clusters": [*clusters, {**EU1, "name": "pool"}, {**EU1, "name": "a-nats"}]},
        "reconcilers": [SHOP],
        "externalSubscribers": [AUDIT],
        "hub": {"cluster": ""},
    }
    objects = render(values, name="r" * 50)
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))
    assert (
        max(
            len(name)
            for kind, _, name in names
            if kind not in CLUSTER_SCOPED | {"Role", "RoleBinding"}
        )
        <= 52
    )


def test_definitions_are_upgraded_with_the_release_and_outlive_it():
    for crd in of_kind(render({}), "CustomResourceDefinition"):
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    gone = of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert [one["metadata"].get("annotations") for one in gone] == [None] * len(gone)
    # Helm never upgrades what lies in a folder of this name.
    assert not (CHART / "crds").exists()


def test_the_rendered_definitions_are_those_of_the_files():
    files = [
        yaml.load(path.read_text(), yaml.CSafeLoader)
        for path in (CHART / "files/crds").glob("*.yaml")
    ]
    rendered = of_kind(render({}), "CustomResourceDefinition")
    assert {file["metadata"]["name"]: file["spec"] for file in files} == {
        obj["metadata"]["name"]: obj["spec"] for obj in rendered
    }


def test_each_listed_cluster_has_a_watcher_of_its_own():
    objects = render(VALUES["everything"])
    deployment = find(objects, "Deployment", "fb-fleetbus-watcher-eu1")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == [
        *("fleetbus-watcher", "--cluster", "eu1"),
        *("--kubeconfig", "/etc/fleetbus/cluster/kubeconfig"),
    ]
    assert deployment["spec"]["replicas"] == 2
    assert find(objects, "Deployment", "fb-fleetbus-watcher-us1")


def test_the_hub_is_watched_by_its_own_watcher_or_the_notes_say_that_it_is_not():
    objects = render(VALUES["everything"])
    names = {
        deployment["metadata"]["name"]: {
            variable["name"]
            for container in deployment["spec"]["template"]["spec"]["containers"]
            for variable in container["env"]
        }
        for deployment in of_kind(objects, "Deployment")
    }
    assert "FLEETBUS_HUB_CLUSTER" in names["fb-fleetbus-distributor"]
    assert "FLEETBUS_HUB_CLUSTER" not in names["fb-fleetbus-pool"]
    texts = render_files({"watchers": {"clusters": [EU1]}})
    notes = next(text for path, text in texts.items() if path.endswith(".txt"))
    assert "nothing watches the hub: list hub in watchers.clusters" in notes


def test_the_notes_warn_of_a_hub_whose_multi_cluster_resources_are_not_watched():
    warning = "add fleetbus.dev/v1alpha1/multiclusterresources"
    few: Object = {"watchers": {"clusters": [{"name": "hub", "watch": {"resources": ["v1/pods"]}}]}}
    for values, is_warned in (
        (few, True),
        ({**few, "distributor": {"enabled": False}}, False),
        ({}, False),
    ):
        texts = render_files(values)
        notes = next(text for path, text in texts.items() if path.endswith(".txt"))
        assert (warning in notes) == is_warned


def test_a_scaled_reconciler_leaves_its_replicas_to_the_scaler():
    objects = render(VALUES["everything"])
    assert "replicas" not in find(objects, "Deployment", "fb-fleetbus-reconciler-shop")["spec"]
    scaler = find(objects, "HorizontalPodAutoscaler", "fb-fleetbus-reconciler-shop")
    metrics = [metric["external"]["metric"] for metric in scaler["spec"]["metrics"]]
    assert {metric["name"] for metric in metrics} == {"fleetbus_queue_depth"}
    assert [metric["selector"]["matchLabels"]["controller"] for metric in metrics] == SHOP[
        "controllers"
    ]
    assert find(objects, "ScaledObject", "fb-fleetbus-reconciler-mail")


def test_s6_no_leaf_port_and_monitoring_on_localhost_only():
    for values in VALUES.values():
        ports = {
            port["containerPort"]
            for _, spec in pods(render(values))
            for container in spec["containers"]
            for port in container.get("ports", [])
        }
        assert ports <= {8080, 8443, 4222, 6222, 6379, 26379}


@each_row("values", VALUES.values())
def test_the_notes_say_what_to_do_next(values: Object):
    notes = next(text for path, text in render_files(values).items() if path.endswith(".txt"))
    assert "fleetbus join eu1 --bootstrap --file eu1.kubeconfig" in notes
    assert "helm -n fleetbus test fb" in notes
