"""A real API server accepts every rendered object, and its CEL rules say what a person understands.

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from support.api.chart import crds
from support.api.rendered_chart import NAMESPACE, VALUES, Object, render
from support.processes.helm import Kubectl, real_hub

pytestmark = pytest.mark.full
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Certificate"}
FIRST = {"Namespace": 0, "CustomResourceDefinition": 1}
MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}


def placed_by(**expression: Any) -> Object:
    return {
        "template": MAP,
        "placement": {"clusterSelector": {"matchExpressions": [expression]}},
    }


def customized_by(**action: Any) -> Object:
    return {"template": MAP, "customize": {"clusters": [{"name": "a", "action": [action]}]}}


def rolled_out(**rollout: Any) -> Object:
    return {"template": MAP, "rollout": rollout}


QUIET: Object = {"name": "quiet", "period": "5m"}
WAVES: list[Object] = [
    {"name": "canary", "clusters": [{"name": "eu1"}], "gates": [{"name": "tests"}]},
    {"name": "eu", "clusterSelector": {"matchLabels": {"a": "b"}}, "maxUnavailable": 1},
    {"name": "half", "percent": 50, "maxUnavailable": "25%", "optional": True},
]


def checked_by(**rule: Any) -> Object:
    return {"template": MAP, "health": [{"apiVersion": "v1", "kind": "X", **rule}]}


def fed_back(kind: str = "X", path: str = ".status.a", **more: Any) -> Object:
    entry = {"apiVersion": "v1", "kind": kind, "fields": [{"name": "a", "path": path}]}
    return {"template": MAP, "feedback": [{**entry, **more}]}


GOOD: list[Object] = [
    checked_by(observedGeneration=True),
    checked_by(
        healthy=[
            {"path": ".status.a", "equals": "x"},
            {"path": ".status.a", "in": [1, True, "x"]},
            {"path": ".status.conditions[?(@.type=='Ready')].status", "exists": False},
        ],
        degraded=[{"path": ".status.a", "atLeast": 1.5}],
    ),
    fed_back(),
    fed_back(name="x", namespace="y"),
    rolled_out(),
    rolled_out(waves=WAVES, maxUnavailable="10%", gates=[QUIET], healthGate={"timeout": "1h"}),
    {"template": MAP},
    {"templates": [MAP]},
    placed_by(key="a", operator="In", values=["b"]),
    placed_by(key="a", operator="Exists"),
    customized_by(op="move", path="/a", **{"from": "/b"}),
    customized_by(op="add", path="/a", value=None, type="json"),
    customized_by(op="remove", path="/a"),
]
REFUSED: list[tuple[Object, str]] = [
    (checked_by(), "set at least one of healthy, degraded and observedGeneration"),
    (checked_by(healthy=[{"path": ".a"}]), "must validate one and only one schema (oneOf)"),
    (checked_by(healthy=[{"path": "status.a", "exists": True}]), "should match '^[.[]'"),
    (fed_back(kind="Secret"), "nothing is collected from Secrets"),
    (fed_back(path=".data.password"), "should match '^[.]status[.[]'"),
    (
        {"template": MAP, "templates": [MAP]},
        "set either template, for one object, or templates, for several",
    ),
    (
        {"template": MAP, "customize": {"clusters": [{"name": "a", "clusterSelector": {}}]}},
        "set either name or clusterSelector",
    ),
    (placed_by(key="a", operator="In"), "operators In and NotIn need values"),
    (placed_by(key="a", operator="NotIn", values=[]), "operators In and NotIn need values"),
    (
        placed_by(key="a", operator="Exists", values=["b"]),
        "operators Exists and DoesNotExist take no values",
    ),
    (
        rolled_out(waves=[{"name": "a"}]),
        "set exactly one of clusters, clusterSelector and percent",
    ),
    (rolled_out(waves=[{"name": "all", "percent": 1}]), "those of built-in waves"),
    (rolled_out(waves=[{"name": "a", "percent": 101}]), "less than or equal to 100"),
    (rolled_out(waves=[{"name": "a", "percent": 1}] * 2), "Duplicate value"),
    (rolled_out(maxUnavailable=0), "greater than or equal to 1"),
    (rolled_out(maxUnavailable="0%"), "spec.rollout.maxUnavailable"),
    (rolled_out(maxUnavailable="half"), "spec.rollout.maxUnavailable"),
    (rolled_out(gates=[{"name": "health"}]), "the gate health is built in"),
    (rolled_out(gates=[{"name": "quiet"}]), "the gate quiet needs a period"),
    (rolled_out(gates=[{"name": "a", "period": "1m"}]), "no other gate takes one"),
    (rolled_out(healthGate={"timeout": "soon"}), "spec.rollout.healthGate.timeout"),
    (customized_by(op="copy", path="/a"), "op move and op copy need from"),
    (customized_by(op="add", path="/a"), '"spec.customize.clusters[0].action[0]" must validate'),
    (customized_by(op="remove", path="/a", type="merge"), "action[0].type: Invalid value"),
]


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncGenerator[Kubectl]:
    async with real_hub(tmp_path) as kubectl:
        yield kubectl


def test_it_accepts_all_objects_and_upgrades_and_refuses_with_words(kubectl: Kubectl):
    kubectl.run("create", "namespace", NAMESPACE)
    for values in VALUES.values():
        objects = [obj for obj in render(values) if obj["kind"] not in OF_OPERATORS]
        objects.sort(key=lambda obj: FIRST.get(obj["kind"], 2))
        text = "\n---\n".join(map(json.dumps, objects))
        # The size of a volume and the users of a pod cannot be changed.
        kubectl.run("delete", "statefulsets,pods", "--all", "-n", NAMESPACE)
        status, output = kubectl.run(
            *("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-"),
            text=text,
        )
        assert status == 0, output
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    for spec in GOOD:
        assert refusal(kubectl, spec) == ""
    for spec, message in REFUSED:
        assert message in refusal(kubectl, spec)


def test_an_object_from_before_a_rule_can_still_be_changed(kubectl: Kubectl):
    """Show that the API server compares: what was stored before a rule existed is left alone."""
    (crd,) = [
        definition for definition in crds() if definition["metadata"]["name"].startswith("multi")
    ]
    older = json.loads(json.dumps(crd))
    strip_rules(older["spec"]["versions"][0]["schema"])
    apply(kubectl, older)
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    apply(kubectl, resource(placed_by(key="a", operator="In")))
    apply(kubectl, crd)
    changed = placed_by(key="a", operator="In")
    changed["placement"]["exclude"] = [{"name": "eu1"}]
    apply(kubectl, resource(changed))
    worse = placed_by(key="b", operator="In")
    status, output = kubectl.run("apply", "--server-side", "-f", "-", text=as_json(worse))
    assert status
    assert "operators In and NotIn need values" in output


def test_a_cluster_with_an_agent_needs_no_secret_and_any_other_does(kubectl: Kubectl):
    (crd,) = [each for each in crds() if each["metadata"]["name"].startswith("clusters.")]
    apply(kubectl, crd)
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    cluster = {"apiVersion": "fleetbus.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"}}
    for access in ("Direct", "Agent"):
        text = json.dumps(cluster | {"spec": {"access": access}})
        status, output = kubectl.run("apply", "--server-side", "-f", "-", text=text)
        assert (status == 0) is (access == "Agent")
        assert ("direct access needs kubeconfigSecretRef" in output) is (access == "Direct")
    status, output = kubectl.run(
        *("patch", "cluster.fleetbus.dev", "a", "--type=merge", "-p"),
        '{"spec": {"access": "Direct"}}',
    )
    assert status
    assert "direct access needs kubeconfigSecretRef" in output


def strip_rules(schema: Any) -> None:
    """Remove every CEL rule of a schema."""
    if isinstance(schema, dict):
        tree = cast("Object", schema)
        tree.pop("x-kubernetes-validations", None)
        for inner in tree.values():
            strip_rules(inner)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            strip_rules(inner)


def apply(kubectl: Kubectl, body: Object) -> None:
    status, output = kubectl.run("apply", "--server-side", "-f", "-", text=json.dumps(body))
    assert status == 0, output


def resource(spec: Object) -> Object:
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": spec,
    }


def refusal(kubectl: Kubectl, spec: Object) -> str:
    status, output = kubectl.run("create", "--dry-run=server", "-f", "-", text=as_json(spec))
    return output if status else ""


def as_json(spec: Object) -> str:
    return json.dumps(resource(spec))
