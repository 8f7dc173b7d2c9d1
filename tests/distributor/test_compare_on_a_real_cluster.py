"""An object is compared as a real API server compares it (rules D3, D13).

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from fleetbus.kube.applied import is_applied
from fleetbus_distributor.render.finish import finish
from fleetbus_distributor.render.spec import DriftPolicy
from fleetbus_distributor.targets.outcome import State
from support.api.spellings import JAR, PAIRS, STORED_ANEW, ZEROES, definition, texts
from support.eventually import eventually
from support.rigs.real_cluster import RealCluster, real_cluster

pytestmark = pytest.mark.full
DEPLOYMENTS, MAPS = "apps/v1/deployments", "v1/configmaps"
ROLES = "rbac.authorization.k8s.io/v1/clusterroles"
PLACE = ("default", "x")
PLURALS = {"Secret": "secrets", "NetworkPolicy": "networkpolicies"}
_KEPT = ("apiVersion", "kind", "metadata", "namespace", "name", "selector", "image")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RealCluster]:
    async with real_cluster(tmp_path) as started:
        yield started


def finished(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finish(obj, "t") for obj in objects]


async def test_d3_texts_are_texts_and_zeroes_are_asked_about_once(cluster: RealCluster):
    desired = finished(ZEROES)
    assert (await cluster.round(*desired)).state is State.APPLIED
    cluster.is_same = True
    for drift in DriftPolicy:
        cluster.drift = drift
        for _ in range(2):
            result = await cluster.round(*desired)
            assert (result.state, result.message, result.changes) == (State.APPLIED, "", [])
            cluster.restart()
    cluster.is_same, cluster.drift = False, DriftPolicy.CORRECT

    (jars,) = finished([definition(JAR)])
    await cluster.round(*desired[:2], jars)

    async def is_applied_with(value: str) -> bool:
        result = await cluster.round(*finished(texts(value)))
        return result.state is State.APPLIED

    await eventually(lambda: is_applied_with("2"))
    for value in PAIRS:
        assert await is_applied_with(value)
        live = await cluster.get(MAPS, *PLACE)
        assert live["data"]["RELEASE"] == value
        jar = await cluster.get("lab.example.org/v1/jars", *PLACE)
        expected = {"text": value, "either": value, "open": {"deep": [value, {"in": value}]}}
        assert jar["spec"] == expected


async def test_d3_a_restart_writes_nothing_that_changes_nothing(cluster: RealCluster):
    """Each apply of these objects stores them anew, and makes another generation of a policy."""
    for obj in finished(STORED_ANEW):
        await cluster.round(obj)
        cluster.is_same = True
        resource = f"{obj['apiVersion']}/{PLURALS[obj['kind']]}"
        before = (await cluster.get(resource, *PLACE))["metadata"]
        for _ in range(3):
            cluster.restart()
            result = await cluster.round(obj)
            assert (result.state, result.changes) == (State.APPLIED, [])
        after = (await cluster.get(resource, *PLACE))["metadata"]
        assert after["resourceVersion"] == before["resourceVersion"], obj["kind"]
        await cluster.client.apply(resource, obj, field_manager="fleetbus-test", force=True)
        again = (await cluster.get(resource, *PLACE))["metadata"]
        assert again["resourceVersion"] != after["resourceVersion"], "a restart proves nothing"
        cluster.is_same = False


async def test_d3_order_defaults_of_keys_and_zeroes_arrive(cluster: RealCluster):
    (template,) = finished(ZEROES[:1])
    pod: dict[str, Any] = template["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    container["ports"] = [{"containerPort": 53, "protocol": "UDP"}]
    pod["hostNetwork"] = True
    container["ports"][0]["hostPort"] = 53
    await cluster.round(template)
    desired = copy.deepcopy(template)
    pod = desired["spec"]["template"]["spec"]
    pod["hostNetwork"] = False
    pod["containers"][0]["env"].reverse()
    pod["containers"][0]["ports"] = [{"containerPort": 53}]
    assert (await cluster.round(desired)).state is State.APPLIED
    spec = (await cluster.get(DEPLOYMENTS, *PLACE))["spec"]["template"]["spec"]
    assert not spec.get("hostNetwork")
    assert [variable["name"] for variable in spec["containers"][0]["env"]] == ["B", "A"]
    assert spec["containers"][0]["ports"][0]["protocol"] == "TCP"

    cluster.is_same, cluster.drift = True, DriftPolicy.REPORT
    other = {"spec": {"template": {"spec": {"hostNetwork": True}}}}
    await cluster.client.patch(DEPLOYMENTS, *PLACE, other, field_manager="hand")
    result = await cluster.round(desired)
    assert result.state is State.DRIFTED
    assert ".spec.template.spec.hostNetwork was changed by hand" in result.message


async def test_d3_what_looks_applied_is_applied(cluster: RealCluster):
    """Where no request is sent a server would have nothing to do."""
    objects = [*finished(ZEROES[:2]), *finished(texts("1.1")[:2])]
    resources = {"ConfigMap": MAPS, "Deployment": DEPLOYMENTS, "Service": "v1/services"}
    for number, obj in enumerate(objects):
        obj["metadata"]["name"] = f"x{number}"
        for variant in variants(obj):
            resource = resources[obj["kind"]]
            applied = await cluster.client.apply(resource, obj, field_manager="m", force=True)
            if is_applied(variant, applied, "m"):
                after = await cluster.client.apply(
                    resource, variant, field_manager="m", force=True, dry_run=True
                )
                assert {**after, "metadata": None} == {**applied, "metadata": None}
                names = ("labels", "annotations", "managedFields")
                assert [after["metadata"].get(n) for n in names] == [
                    applied["metadata"].get(n) for n in names
                ]


def variants(tree: Any) -> list[Any]:
    """Copies of a tree with one part removed, or one list reversed."""
    results: list[Any] = [tree]
    if isinstance(tree, dict):
        fields = cast("dict[str, Any]", tree)
        for key, field in fields.items():
            if key not in _KEPT:
                results.append({k: v for k, v in fields.items() if k != key})
            results += [{**fields, key: variant} for variant in variants(field)[1:]]
    elif isinstance(tree, list):
        items = cast("list[Any]", tree)
        results.append(items[::-1])
        for number, item in enumerate(items):
            results += [
                [*items[:number], variant, *items[number + 1 :]] for variant in variants(item)[1:]
            ]
    return results


async def test_d13_rules_of_an_aggregated_role_are_no_conflict(cluster: RealCluster):
    role: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "sum", "labels": {"step": "one"}},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"adds-to": "part"}}]},
        "rules": [],
    }
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    foreign = {
        "apiVersion": role["apiVersion"],
        "kind": "ClusterRole",
        "metadata": {"name": "sum"},
        "rules": rules,
    }
    await cluster.round(finish(role, "t"))
    manager = "clusterrole-aggregation-controller"
    await cluster.client.apply(ROLES, foreign, field_manager=manager, force=True)
    role["metadata"]["labels"]["step"] = "two"
    assert (await cluster.round(finish(role, "t"))).state is State.APPLIED
    live = await cluster.get(ROLES, "", "sum")
    assert live["metadata"]["labels"]["step"] == "two"
    assert live["rules"] == rules
