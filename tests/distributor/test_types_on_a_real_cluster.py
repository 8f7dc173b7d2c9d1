"""Types of a set, upgrades of a CRD, and changes of others, on a real API server (D9, D12, D26).

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from e2e.binaries import ProgramsMissingError, find_programs
from e2e.planes import ADMIN_TOKEN, control_planes
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.ownership import Owner
from fleetbus_distributor.plan.intent import Owned
from fleetbus_distributor.render.spec import Policy
from fleetbus_distributor.targets.converge import converge
from fleetbus_distributor.targets.drift import Corrections
from fleetbus_distributor.targets.limits import Limits
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_distributor.targets.seen import SeenOnTargets
from fleetbus_distributor.targets.target import Target
from support.eventually import eventually

pytestmark = pytest.mark.full
GROUP = "example.org"
OWNER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u1", "hub", hub="h1")
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
    spec = {"type": "object", "properties": {one: {"type": "integer"} for one in fields}}
    return {"type": "object", "properties": {"spec": spec}}


def database(version: str, **spec: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Database",
        "metadata": {"name": "main", "namespace": "team"},
        "spec": spec,
    }


class OneCluster:
    """Rounds on one real cluster."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._seen = SeenOnTargets()
        self._limits = Limits(qps=100, burst=200, in_flight=20)
        self.known: dict[Any, Owned] = {}
        self.is_same = False
        """The rounds apply what they applied before."""

    async def round(self, *objects: dict[str, Any], prune: tuple[str, ...] = ()) -> ClusterOutcome:
        target = Target(
            name="c",
            client=self.client,
            owner=OWNER,
            manager="fleetbus-test",
            policy=Policy(delete_namespaces=True),
            corrections=Corrections(),
            seen=self._seen,
            limits=self._limits.of("c"),
            known=self.known,
            is_same=self.is_same,
        )
        going = [one for one in self.known.values() if one.kind in prune]
        result = await converge(target, objects, going, "r")
        self.known = dict(result.inventory)
        return result

    async def get(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        found = await self.client.get(resource, namespace, name)
        assert found is not None
        return found

    async def established_at(self) -> datetime:
        definitions = "apiextensions.k8s.io/v1/customresourcedefinitions"
        found = await self.get(definitions, "", f"databases.{GROUP}")
        conditions: list[dict[str, str]] = found["status"]["conditions"]
        one = next(one for one in conditions if one["type"] == "Established")
        return datetime.fromisoformat(one["lastTransitionTime"])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[OneCluster]:
    try:
        programs = find_programs()
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    async with control_planes({"eu1": None}, tmp_path, programs) as planes:
        config = read_kube_config(planes["eu1"].write_kubeconfig("admin", token=ADMIN_TOKEN))
        async with KubeClient(config) as client:
            yield OneCluster(client)


async def test_d12_d9_a_definition_its_instances_and_an_upgrade(cluster: OneCluster):
    first = crd(v1alpha1=["size"])
    result = await cluster.round(database("v1alpha1", size=1), MAP, NAMESPACE, first)
    assert (result.state, result.message) == (State.APPLIED, "")
    made = await cluster.get(f"{GROUP}/v1alpha1/databases", "team", "main")
    assert await cluster.established_at() + timedelta(seconds=2) >= time_of(made)
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
    found = await cluster.get(f"{GROUP}/v1/databases", "team", "main")
    assert found["spec"] == {"size": 2, "tier": 3}
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert {one["apiVersion"] for one in found["metadata"]["managedFields"]} == {f"{GROUP}/v1"}
    await check_deletion(cluster)


async def test_d26_changes_of_others_as_a_real_server_reports_them(cluster: OneCluster):
    """The field, its manager and the time are in what was read before the write."""
    wanted = {**MAP, "data": {"a": "1", "b": "2"}}
    maps, place = "v1/configmaps", ("team", "m")
    await cluster.round(NAMESPACE, wanted)
    cluster.is_same = True
    await cluster.client.patch(maps, *place, {"data": {"a": "x"}}, field_manager="hand")
    live = await cluster.get(maps, *place)
    (entry,) = [one for one in live["metadata"]["managedFields"] if one["manager"] == "hand"]
    assert await corrected(cluster, wanted) == f".data.a was changed by hand at {entry['time']}"
    assert await corrected(cluster, wanted) == "", "and that is the end of it"

    await cluster.client.patch(maps, *place, {"data": {"b": None}}, field_manager="hand")
    live = await cluster.get(maps, *place)
    assert "hand" not in str(live["metadata"]["managedFields"]), "who removes a field owns nothing"
    assert await corrected(cluster, wanted) == ".data.b was removed"

    await cluster.client.delete(maps, *place)
    assert await corrected(cluster, wanted) == "it was deleted"

    theirs = {**MAP, "data": {"a": "theirs"}}
    await cluster.client.apply(maps, theirs, field_manager="other", force=True)
    (found,) = (await cluster.round(NAMESPACE, wanted)).findings
    assert (found.state, found.reason) == (State.CONFLICT, "FieldConflict")
    assert [(one.field, one.manager) for one in found.drift] == [(".data.a", "other")]


async def corrected(cluster: OneCluster, wanted: dict[str, Any]) -> str:
    """The description of what a round takes back; "" for nothing."""
    result = await cluster.round(NAMESPACE, wanted)
    assert (result.state, result.message) == (State.APPLIED, "")
    return "; ".join(str(drift) for one in result.corrected for drift in one.drift)


async def check_deletion(cluster: OneCluster) -> None:
    """The namespace stays while it holds anything else; the definition goes after its instances."""
    theirs = {"metadata": {"name": "theirs", "namespace": "team"}}
    await cluster.client.create("v1/configmaps", theirs)
    kinds = ("ConfigMap", "Database", "Namespace", "CustomResourceDefinition")
    result = await cluster.round(prune=kinds)
    assert (result.state, result.reason) == (State.HELD, "NamespaceNotEmpty")
    assert result.message.endswith("it still holds ConfigMap theirs")
    assert {one.kind for one in cluster.known.values()} <= {"Namespace", "CustomResourceDefinition"}
    await cluster.client.delete("v1/configmaps", "team", "theirs")

    async def is_going() -> bool:
        await cluster.round(prune=kinds)
        namespace = await cluster.get("v1/namespaces", "", "team")
        return "deletionTimestamp" in namespace["metadata"]  # nobody here finishes it

    await eventually(is_going, timedelta(seconds=20))


def time_of(obj: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
