"""Types of a set, upgrades of a CRD, and changes of others, on a real API server (D9, D12, D26).

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus_distributor.targets.outcome import State
from support.eventually import eventually
from support.rigs.real_cluster import RealCluster, real_cluster

pytestmark = pytest.mark.full
GROUP = "example.org"
MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m", "namespace": "team"},
}
NAMESPACE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "team", "namespace": "default"},
}


def crd(**versions: list[str]) -> dict[str, Any]:
    """Version → the fields of its spec; the last one is stored."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"databases.{GROUP}", "namespace": "default"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "databases", "singular": "database", "kind": "Database"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == list(versions)[-1],
                    "schema": {"openAPIV3Schema": _schema(fields)},
                }
                for version, fields in versions.items()
            ],
        },
    }


def _schema(fields: list[str]) -> dict[str, Any]:
    spec = {"type": "object", "properties": {field: {"type": "integer"} for field in fields}}
    return {"type": "object", "properties": {"spec": spec}}


def database(version: str, **spec: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Database",
        "metadata": {"name": "main", "namespace": "team"},
        "spec": spec,
    }


async def established_at(cluster: RealCluster) -> datetime:
    definitions = "apiextensions.k8s.io/v1/customresourcedefinitions"
    definition = await cluster.get(definitions, "", f"databases.{GROUP}")
    conditions: list[dict[str, str]] = definition["status"]["conditions"]
    condition = next(
        each_condition for each_condition in conditions if each_condition["type"] == "Established"
    )
    return datetime.fromisoformat(condition["lastTransitionTime"])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RealCluster]:
    async with real_cluster(tmp_path) as started:
        yield started


async def test_d12_d9_a_definition_its_instances_and_an_upgrade(cluster: RealCluster):
    first = crd(v1alpha1=["size"])
    result = await cluster.round(database("v1alpha1", size=1), MAP, NAMESPACE, first)
    assert (result.state, result.message) == (State.APPLIED, "")
    created = await cluster.get(f"{GROUP}/v1alpha1/databases", "team", "main")
    assert await established_at(cluster) + timedelta(seconds=2) >= time_of(created)
    # Somebody else has written in the old version; the new one has a field that it lacks. Without
    # moving managedFields, the API server refuses every apply that sets this field.
    patch = {"metadata": {"labels": {"by": "hand"}}}
    old = f"{GROUP}/v1alpha1/databases"
    await cluster.client.patch(old, "team", "main", patch, field_manager="hand")
    upgraded = crd(v1alpha1=["size"], v1=["size", "tier"])

    async def is_upgraded() -> bool:
        result = await cluster.round(database("v1", size=2, tier=3), MAP, NAMESPACE, upgraded)
        return result.state is State.APPLIED

    await eventually(is_upgraded, timedelta(seconds=20))
    live = await cluster.get(f"{GROUP}/v1/databases", "team", "main")
    assert live["spec"] == {"size": 2, "tier": 3}
    assert live["metadata"]["uid"] == created["metadata"]["uid"]
    assert {entry["apiVersion"] for entry in live["metadata"]["managedFields"]} == {f"{GROUP}/v1"}
    await check_deletion(cluster)


async def test_d26_changes_of_others_as_a_real_server_reports_them(cluster: RealCluster):
    """The field, its manager and the time are in what was read before the write."""
    desired = {**MAP, "data": {"a": "1", "b": "2"}}
    maps, place = "v1/configmaps", ("team", "m")
    await cluster.round(NAMESPACE, desired)
    cluster.is_same = True
    await cluster.client.patch(maps, *place, {"data": {"a": "x"}}, field_manager="hand")
    live = await cluster.get(maps, *place)
    (entry,) = [
        each_entry
        for each_entry in live["metadata"]["managedFields"]
        if each_entry["manager"] == "hand"
    ]
    assert await corrected(cluster, desired) == f".data.a was changed by hand at {entry['time']}"
    assert await corrected(cluster, desired) == "", "and that is the end of it"

    await cluster.client.patch(maps, *place, {"data": {"b": None}}, field_manager="hand")
    live = await cluster.get(maps, *place)
    assert "hand" not in str(live["metadata"]["managedFields"]), "who removes a field owns nothing"
    assert await corrected(cluster, desired) == ".data.b was removed"

    await cluster.client.delete(maps, *place)
    assert await corrected(cluster, desired) == "it was deleted"

    foreign = {**MAP, "data": {"a": "theirs"}}
    await cluster.client.apply(maps, foreign, field_manager="other", force=True)
    (finding,) = (await cluster.round(NAMESPACE, desired)).findings
    assert (finding.state, finding.reason) == (State.CONFLICT, "FieldConflict")
    assert [(drift.field, drift.manager) for drift in finding.drift] == [(".data.a", "other")]


async def corrected(cluster: RealCluster, desired: dict[str, Any]) -> str:
    """The description of what a round takes back; "" for nothing."""
    result = await cluster.round(NAMESPACE, desired)
    assert (result.state, result.message) == (State.APPLIED, "")
    return "; ".join(str(drift) for correction in result.corrected for drift in correction.drift)


async def check_deletion(cluster: RealCluster) -> None:
    """The namespace stays while it holds anything else; the definition goes after its instances."""
    foreign = {"metadata": {"name": "theirs", "namespace": "team"}}
    await cluster.client.create("v1/configmaps", foreign)
    kinds = ("ConfigMap", "Database", "Namespace", "CustomResourceDefinition")
    result = await cluster.round(prune=kinds)
    assert (result.state, result.reason) == (State.HELD, "NamespaceNotEmpty")
    assert result.message.endswith("it still contains ConfigMap theirs")
    assert {obj.kind for obj in cluster.known.values()} <= {"Namespace", "CustomResourceDefinition"}
    await cluster.client.delete("v1/configmaps", "team", "theirs")

    async def is_going() -> bool:
        await cluster.round(prune=kinds)
        namespace = await cluster.get("v1/namespaces", "", "team")
        return "deletionTimestamp" in namespace["metadata"]  # nobody here finishes it

    await eventually(is_going, timedelta(seconds=20))


def time_of(obj: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
