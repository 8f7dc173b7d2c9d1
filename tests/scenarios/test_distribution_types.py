"""Types, namespaces and who owns which field (rules D9, D10, D12, D18), on the bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.objects import config_map
from support.rigs.distribution import (
    AFTER_RETURN,
    EVERYWHERE,
    HUB,
    IN_FULL,
    Distribution,
    distribution,
)
from support.rigs.fleet import Rig
from support.servers.real_cluster import REAL

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
Object = dict[str, Any]
GROUP = "examples.fleetbus.dev"
MAPS, NAMESPACES = "v1/configmaps", "v1/namespaces"
EVERYBODY = ("t1", "t2", HUB)
TEAM: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}


def databases(version: str) -> str:
    return f"{GROUP}/{version}/databases"


def definition(**versions: list[str]) -> Object:
    """Version → the integers of its spec; the last one is stored."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"databases.{GROUP}"},
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


def _schema(fields: list[str]) -> Object:
    spec = {"type": "object", "properties": {field: {"type": "integer"} for field in fields}}
    return {"type": "object", "properties": {"spec": spec}}


def database(version: str, **spec: int) -> Object:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Database",
        "metadata": {"name": "main", "namespace": "team"},
        "spec": spec,
    }


def in_team(value: str) -> Object:
    return config_map(k=value, namespace="team")


async def test_d12_d9_a_definition_comes_with_its_instances_and_is_upgraded(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        first = definition(v1alpha1=["size"])
        # In the wrong order: instance, what is in the namespace, the namespace, the type.
        templates = [database("v1alpha1", size=1), in_team("v1"), TEAM, first]
        d.create(templates=templates, placement=EVERYWHERE)
        await d.applied()
        for name in EVERYBODY:
            created = d.get(name, databases("v1alpha1"), "main", "team")
            # In the same round: the next would have come 5 s later.
            assert _time(created) - _established(d, name) <= timedelta(seconds=4)
        uid = d.get("t1", databases("v1alpha1"), "main", "team")["metadata"]["uid"]

        # Somebody else wrote in the old version, and the new one has a field that it lacks: until
        # managedFields are moved, a server refuses every apply that sets the new field (rule D9).
        by_hand = {"metadata": {"labels": {"by": "hand"}}}
        server = d.rig.clusters["t1"]
        server.patch(databases("v1alpha1"), "team", "main", by_hand, manager="hand")
        upgraded = definition(v1alpha1=["size"], v1=["size", "tier"])
        d.edit(templates=[database("v1", size=2, tier=3), in_team("v1"), TEAM, upgraded])
        await d.applied()
        live = d.get("t1", databases("v1"), "main", "team")
        assert live["spec"] == {"size": 2, "tier": 3}
        assert live["metadata"]["uid"] == uid
        assert live["metadata"]["labels"]["by"] == "hand"
        managed = live["metadata"]["managedFields"]
        # An emulated server refuses no apply because of the entry of somebody else, so it stays.
        moved = [entry for entry in managed if REAL or entry["operation"] == "Apply"]
        assert {entry["apiVersion"] for entry in moved} == {f"{GROUP}/v1"}
        await d.stays_quiet()

        # The definition goes after its instances; the namespace may hold what others put there.
        d.delete()
        await d.gone()
        assert d.where(MAPS, "m", "team") == []
        assert d.where(NAMESPACES, "team") == sorted(EVERYBODY)
        crd = f"databases.{GROUP}"
        await eventually(lambda: d.where(CRDS, crd) == [], AFTER_RETURN)


async def test_d9_a_type_that_one_cluster_lacks_waits_there_alone(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        for name in ("t1", HUB):
            d.rig.clusters[name].create(CRDS, definition(v1=["size"]))
        d.create(
            templates=[database("v1", size=1), in_team("v1")],
            placement=EVERYWHERE,
            policy={"createNamespaces": True},
        )
        await d.has_states(t1="Applied", t2="Waiting/NoMatch", t4="Applied")
        assert "Database" in d.entry("t2")["message"]
        assert d.where(MAPS, "m", "team") == sorted(EVERYBODY), "its siblings go on"
        d.rig.clusters["t2"].create(CRDS, definition(v1=["size"]))
        await d.applied()
        d.delete()
        await d.gone()
        await d.close(
            deleted=[
                f"{name} {name_of_object}" for name in EVERYBODY for name_of_object in ("main", "m")
            ]
        )


async def test_d10_a_namespace_is_deleted_only_when_it_holds_nothing(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        policy = {"deleteNamespaces": True}
        d.create(templates=[in_team("v1"), TEAM], placement={"clusters": [{"name": "t1"}]})
        await d.applied("t1")
        d.edit(policy=policy)
        t1 = d.rig.clusters["t1"]
        t1.create(MAPS, {"metadata": {"name": "theirs"}}, "team")
        d.delete()
        await eventually(lambda: d.where(MAPS, "m", "team") == [], AFTER_RETURN)

        def is_held() -> bool:
            entries = d.status().get("clusters", [])
            return any(entry["reason"] == "NamespaceNotEmpty" for entry in entries)

        await eventually(is_held, AFTER_RETURN)
        assert "ConfigMap theirs" in d.entry("t1")["message"]
        assert "deletionTimestamp" not in d.get("t1", NAMESPACES, "team")["metadata"]
        t1.delete(MAPS, "team", "theirs")
        await eventually(lambda: _is_going(d), AFTER_RETURN)


async def test_d18_revisions_and_managed_fields_are_as_a_real_server_stores_them(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        d.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={})
        await d.applied()
        d.edit(template=config_map(k="v2"))
        await eventually(lambda: d.status().get("rollout", {}).get("revision") == 2, AFTER_RETURN)
        await d.applied()
        resource = d.resource()["metadata"]
        revisions = d.hub.list("apps/v1/controllerrevisions", "default")
        assert sorted(revision["revision"] for revision in revisions) == [1, 2]
        for one in revisions:
            metadata = one["metadata"]
            assert metadata["labels"]["fleetbus.dev/owner-uid"] == resource["uid"]
            (owner,) = metadata["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("MultiClusterResource", resource["uid"])
        entries = d.get("t1", MAPS, "m")["metadata"]["managedFields"]
        assert [(entry["manager"].split("-")[0], entry["operation"]) for entry in entries] == [
            ("fleetbus", "Apply")
        ]
        assert entries[0]["fieldsV1"]["f:data"] == {"f:k": {}}
        await d.close()


def _is_going(d: Distribution) -> bool:
    namespace = d.rig.clusters["t1"].get(NAMESPACES, None, "team")
    return namespace is None or "deletionTimestamp" in namespace["metadata"]


def _established(d: Distribution, name: str) -> datetime:
    found = d.get(name, CRDS, f"databases.{GROUP}")
    conditions: list[dict[str, str]] = found["status"]["conditions"]
    established = next(condition for condition in conditions if condition["type"] == "Established")
    return datetime.fromisoformat(established["lastTransitionTime"])


def _time(obj: Object) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
