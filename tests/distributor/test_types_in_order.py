"""Types that a set brings with it, that a cluster lacks, or that were upgraded (rules D9, D12)."""

from __future__ import annotations

import asyncio
import copy
import time
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.errors import ServerError
from fleetbus.ownership import Owner
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.targets import instances
from fleetbus_distributor.targets.field_versions import is_outdated, to_version
from fleetbus_distributor.targets.instances import split_instances
from fleetbus_distributor.targets.memory import MissingTypes
from fleetbus_emulator.apiserver import Fail
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rows import each_row

GROUP = "example.org"
DATABASES = f"{GROUP}/v1/databases"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    **definition(GROUP, "databases", "Database"),
}
DATABASE: dict[str, Any] = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "Database",
    "metadata": {"name": "main", "namespace": "default"},
    "spec": {"size": 1},
}
UNDECLARED = ".spec.size: field not declared in schema"


def place(rig: Rig, *templates: dict[str, Any], **spec: Any) -> None:
    clusters = {"clusters": [{"name": "t1"}]}
    rig.create(templates=copy.deepcopy(list(templates)), placement=clusters, **spec)


def hide_type(rig: Rig, times: int | None) -> None:
    """Let discovery lag behind: the API server does not know the type yet."""
    rig.clusters["t1"].faults.add(Fail(404), verb="discover", group=GROUP, count=times)


async def test_d12_instances_are_created_in_the_round_of_their_definition(rig: Rig):
    hide_type(rig, 4)
    place(rig, DATABASE, CRD, CONFIG_MAP)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    assert rig.has("t1", DATABASES, "main")
    requests = [
        request for request in rig.clusters["t1"].requests if request.path.endswith(f"{GROUP}/v1")
    ]
    assert 5 <= len(requests) <= 7


@pytest.mark.slow
async def test_d12_what_needs_no_new_type_does_not_wait_for_one(rig: Rig):
    hide_type(rig, None)
    place(rig, DATABASE, CRD, CONFIG_MAP)
    running = asyncio.create_task(rig.reconcile())
    try:
        async with asyncio.timeout(instances.SERVED_WITHIN.total_seconds()):
            await eventually(lambda: rig.has("t1", "v1/configmaps", "m"))
            assert not running.done()
    finally:
        await running
    assert rig.states() == {"t1": "Waiting/NoMatch"}
    assert rig.later["x", "t1"] == timedelta(seconds=1)
    rig.clusters["t1"].faults.clear()
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}


async def test_d12_a_type_whose_lists_have_a_kind_of_their_own_comes_and_goes(rig: Rig):
    crd = copy.deepcopy(CRD)
    crd["spec"]["names"]["listKind"] = "DatabaseCollection"
    place(rig, crd, DATABASE)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    rig.delete()
    await rig.until(lambda: not rig.has("t1", CRDS, f"databases.{GROUP}", namespace=None))


async def test_d9_a_repair_does_not_wait_for_types(rig: Rig):
    place(rig, DATABASE, CRD)
    await rig.reconcile()
    rig.clusters["t1"].delete(CRDS, None, f"databases.{GROUP}")
    began = time.monotonic()
    await rig.repair("t1")
    assert time.monotonic() - began < instances.SERVED_WITHIN.total_seconds() / 2


@pytest.mark.slow
async def test_d9_a_type_that_is_removed_and_comes_back_meanwhile(rig: Rig):
    rig.clusters["t1"].create(CRDS, CRD)
    place(rig, DATABASE, CONFIG_MAP)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    rig.clusters["t1"].delete(CRDS, None, f"databases.{GROUP}")
    rig.clusters["t1"].delete("v1/configmaps", "default", "m")
    await rig.reconcile()
    assert rig.states() == {"t1": "Waiting/NoMatch"}
    assert rig.has("t1", "v1/configmaps", "m")
    rig.clusters["t1"].create(CRDS, CRD)
    await rig.until(lambda: rig.states() == {"t1": "Applied"})
    assert rig.has("t1", DATABASES, "main")


def owner(name: str) -> Owner:
    return Owner(API_VERSION, KIND, "default", name, f"uid-{name}", "hub", hub="uid-of-hub")


TYPE = (f"{GROUP}/v1", "Database")


def test_d9_a_missing_type_is_discovered_less_and_less_often():
    now = 0.0
    missing = MissingTypes(lambda: now)
    waits: list[float] = []
    while now < 1000:
        wait = missing.note_missing("c", *TYPE, owner("x")).total_seconds()
        waits.append(wait)
        now += wait
    assert waits[:3] == [1, 1, 2]
    assert max(waits) == 300
    assert len(waits) < 15
    assert missing.note_missing("d", *TYPE, owner("x")).total_seconds() == 1
    now += 3600  # nobody asks for an hour
    assert missing.note_missing("c", *TYPE, owner("x")).total_seconds() == 1
    now += 10
    assert missing.note_missing("c", *TYPE, owner("x")).total_seconds() == 10
    missing.note_served("c", *TYPE)
    assert missing.note_missing("c", *TYPE, owner("x")).total_seconds() == 1


def reported(state: ResourceState = ResourceState.LISTING) -> list[ResourceRecord]:
    return [
        ResourceRecord(group=GROUP, version="v1", plural="databases", kind="Database", state=state)
    ]


def test_d9_those_who_wait_are_woken_once_when_the_type_is_reported():
    now = 0.0
    missing = MissingTypes(lambda: now)
    for name in ("x", "y"):
        missing.note_missing("c", *TYPE, owner(name))
    missing.note_missing("d", *TYPE, owner("z"))
    missing.note_missing("c", "v1", "Gadget", owner("z"))
    assert missing.groups() == {("c", GROUP), ("d", GROUP), ("c", "core")}
    gone = reported(ResourceState.UNKNOWN)
    for records in ([], gone):
        assert not missing.take_reported("c", GROUP, records)
    now = 200
    assert {waiter.name for waiter in missing.take_reported("c", GROUP, reported())} == {"x", "y"}
    assert missing.take_news("c", *TYPE)
    assert not missing.take_news("c", *TYPE)
    # It is served a moment later: soon again, and not at each look.
    assert missing.note_missing("c", *TYPE, owner("x")).total_seconds() == 1
    assert not missing.take_reported("c", GROUP, reported())
    assert not missing.take_reported("c", GROUP, gone)
    assert [waiter.name for waiter in missing.take_reported("c", GROUP, reported())] == ["x"]
    now = 3600
    assert missing.groups() == set(), "nobody wants them any more"


def test_d12_only_instances_of_types_of_the_same_set_wait():
    other = {**DATABASE, "apiVersion": "other.org/v1"}
    crd = {**CRD, "metadata": {**CRD["metadata"], "namespace": "default"}}
    broken = {"kind": "CustomResourceDefinition", "metadata": crd["metadata"], "spec": "${x}"}
    ready, waiting = split_instances(
        [
            DATABASE,
            crd,
            other,
            {**broken, "apiVersion": "apiextensions.k8s.io/v1"},
        ]
    )
    assert [obj["kind"] for obj in ready] == [
        "CustomResourceDefinition",
        "Database",
        "CustomResourceDefinition",
    ]
    assert waiting == {(f"{GROUP}/v1", "Database"): [DATABASE]}


async def test_a_field_that_the_type_does_not_have_is_not_retried_every_few_seconds(rig: Rig):
    place(rig, {**CONFIG_MAP, "typo": 1})
    await rig.reconcile()
    assert rig.states() == {"t1": "Failed/Invalid"}
    assert "field not declared in schema" in rig.entry("t1")["message"]
    assert rig.later["x", "t1"] == timedelta(minutes=1)


async def test_d9_managed_fields_of_an_older_version_are_moved_and_the_apply_repeated(rig: Rig):
    rig.clusters["t1"].create(CRDS, definition(GROUP, "databases", "Database", "v1alpha1", "v1"))
    old = {**DATABASE, "apiVersion": f"{GROUP}/v1alpha1"}
    place(rig, old)
    await rig.reconcile()
    uid = rig.get("t1", DATABASES, "main")["metadata"]["uid"]
    rig.clusters["t1"].faults.add(
        Fail(500, message=UNDECLARED), verb="patch", resource="databases", count=1
    )
    rig.edit(templates=[{**DATABASE, "spec": {"size": 2}}])
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    live = rig.get("t1", DATABASES, "main")
    assert (live["spec"]["size"], live["metadata"]["uid"]) == (2, uid)
    versions = {entry["apiVersion"] for entry in live["metadata"]["managedFields"]}
    assert versions == {f"{GROUP}/v1"}
    await rig.reconcile()
    assert [write.verb for write in rig.writes("t1")][-3:] == ["patch", "patch", "patch"]


def test_d9_entries_that_name_the_same_manager_are_united():
    entry = {"manager": "m", "operation": "Apply", "apiVersion": "g/v1"}
    entries: list[dict[str, Any]] = [
        {**entry, "fieldsV1": {"f:spec": {"f:a": {}}}},
        {**entry, "apiVersion": "g/v2", "fieldsV1": {"f:spec": {"f:b": {"f:c": {}}}}},
        {**entry, "subresource": "status", "fieldsV1": {"f:status": {}}},
        {**entry, "apiVersion": "other/v1", "fieldsV1": {}},
    ]
    moved = to_version(entries, "g/v2")
    assert [(one["apiVersion"], one["fieldsV1"]) for one in moved] == [
        ("g/v2", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}}}),
        ("g/v2", {"f:status": {}}),
        ("other/v1", {}),
    ]


def test_d9_only_fields_of_another_version_are_moved():
    error = ServerError(500, "", UNDECLARED)
    live = {"metadata": {"managedFields": [{"apiVersion": "g/v1"}, {"apiVersion": "v1"}]}}
    assert is_outdated(error, live, "g/v2")
    assert not is_outdated(error, live, "g/v1")
    assert not is_outdated(error, live, "h/v2")
    assert not is_outdated(ServerError(500, "", "timeout"), live, "g/v2")


@each_row(
    ("api_version", "kind", "meant"),
    [
        ("apps/v1", "Deploymnet", " (did you mean 'Deployment'?)"),
        ("apps/v1", "deployment", " (did you mean 'Deployment'?)"),
        ("v1", "ConfigMaps", " (did you mean 'ConfigMap'?)"),
        ("v1", "Zzz", ""),
        ("apps/v9", "Deployment", ""),
    ],
)
async def test_d9_a_misspelt_kind_is_named_with_what_was_meant(
    rig: Rig, api_version: str, kind: str, meant: str
):
    obj = {**CONFIG_MAP, "apiVersion": api_version, "kind": kind}
    name = f"x-{kind.lower()}-{api_version.replace('/', '-')}"
    rig.create(name, templates=[obj], placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile(name)
    entry = rig.entry("t1", name)
    assert entry["reason"] == "NoMatch"
    assert entry["message"].endswith(f"does not serve {kind} of {api_version}{meant}")
