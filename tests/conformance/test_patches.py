"""PATCH: JSON patch, merge patch, strategic merge."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.api.conformance_client import JSON, JSON_PATCH, MERGE, STRATEGIC, Api, Reply
from support.api.conformance_objects import Space, deployment

REJECTED = "the server rejected our request due to an error in our request"


@pytest.fixture
def one(api: Api, space: Space, name: str) -> str:
    """The path of a widget."""
    assert api.post(space.widgets, space.widget(name)).status == 201
    return f"{space.widgets}/{name}"


@pytest.fixture
def deployed(api: Api, space: Space, name: str) -> str:
    """The path of a Deployment."""
    assert api.post(space.apps("deployments"), deployment(name)).status == 201
    return f"{space.apps('deployments')}/{name}"


def test_a_json_patch_goes_operation_by_operation(api: Api, one: str):
    reply = api.json_patch(
        one,
        {"op": "test", "path": "/spec/size", "value": 3},
        {"op": "replace", "path": "/spec/size", "value": 2},
        {"op": "add", "path": "/spec/plain", "value": ["a"]},
        {"op": "add", "path": "/spec/plain/-", "value": "b"},
        {"op": "remove", "path": "/spec/replicas"},
    )
    assert reply.spec == {"size": 2, "plain": ["a", "b"], "replicas": 3}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/size", "value": 999},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "remove", "path": "/spec/nope"},
        {"op": "add", "path": "/metadata/annotations/a~1b", "value": "x"},
        {"op": "replace", "path": "/spec/free/x", "value": 1},
    ],
)
def test_a_json_patch_that_fails_is_invalid(api: Api, one: str, operation: dict[str, Any]):
    reply = api.json_patch(one, operation)
    assert reply.failed == (422, "Invalid")
    assert reply.message == REJECTED


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (JSON_PATCH, {"spec": {}}),
        (JSON_PATCH, b"[{"),
        (MERGE, b"{"),
        (MERGE, [1]),
    ],
)
def test_a_patch_that_cannot_be_read_is_a_bad_request(api: Api, one: str, content: str, body: Any):
    assert api.call("PATCH", one, body, content=content).failed == (400, "BadRequest")


def test_a_merge_patch_merges_and_null_deletes(api: Api, one: str):
    api.merge(one, {"spec": {"color": "red", "free": {"a": {"b": 1, "c": 2}}}})
    reply = api.merge(one, {"spec": {"color": None, "free": {"a": {"b": None, "d": [1]}}}})
    assert reply.spec == {"size": 3, "replicas": 3, "free": {"a": {"c": 2, "d": [1]}}}


def test_a_patch_is_validated(api: Api, one: str):
    reply = api.merge(one, {"spec": {"free": "text"}})
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("spec.free", "FieldValueTypeInvalid")]


def test_nothing_is_renamed_or_made_by_a_patch(api: Api, space: Space, name: str, one: str):
    assert api.merge(one, {"metadata": {"name": "zzz"}}).failed == (400, "BadRequest")
    assert api.merge(f"{space.widgets}/{name}-none", {"spec": {}}).failed == (404, "NotFound")


@pytest.mark.parametrize("content", [JSON, STRATEGIC, "text/plain"])
def test_custom_resources_know_three_kinds_of_patches(api: Api, one: str, content: str):
    reply = api.call("PATCH", one, {"spec": {"size": 1}}, content=content)
    assert reply.failed == (415, "UnsupportedMediaType")
    assert "accepted media types include: application/json-patch+json" in reply.message


def test_force_is_for_applies(api: Api, one: str):
    reply = api.merge(one, {}, force="true")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("force", "FieldValueForbidden")]
    assert reply.details["kind"] == "PatchOptions"


def test_patches_without_a_version_never_conflict(api: Api, one: str):
    def patch(number: int) -> int:
        return api.merge(one, {"spec": {"free": {f"k{number}": number}}}).status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(patch, range(24))) == {200}
    assert len(api.get(one).spec["free"]) == 24


def test_a_dry_run_changes_nothing(api: Api, one: str):
    before = api.get(one)
    reply = api.merge(one, {"spec": {"size": 9}}, dryRun="All")
    assert (reply.spec["size"], reply.meta["generation"]) == (9, 2)
    assert api.get(one).rv == before.rv


# strategic --------------------------------------------------------------------------------------


def containers(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.text
    return [c["name"] for c in reply.spec["template"]["spec"]["containers"]]


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def test_a_strategic_merge_merges_lists_by_key(api: Api, deployed: str):
    side = {"name": "side", "image": "b", "ports": [{"containerPort": 80}]}
    assert containers(api.strategic(deployed, template(containers=[side]))) == ["side", "c"]
    named = {"name": "side", "ports": [{"containerPort": 80, "name": "http"}]}
    reply = api.strategic(deployed, template(containers=[named]))
    (container,) = [c for c in reply.spec["template"]["spec"]["containers"] if c["name"] == "side"]
    assert container["image"] == "b"
    assert container["ports"] == [{"containerPort": 80, "name": "http", "protocol": "TCP"}]
    gone = [{"name": "side", "$patch": "delete"}]
    assert containers(api.strategic(deployed, template(containers=gone))) == ["c"]


def test_a_strategic_merge_can_replace(api: Api, deployed: str):
    volumes: list[Any] = [{"name": n, "emptyDir": {}} for n in ("a", "b")]
    api.strategic(deployed, template(volumes=volumes))
    other: list[Any] = [{"$patch": "replace"}, {"name": "z", "emptyDir": {}}]
    reply = api.strategic(deployed, template(volumes=other))
    assert [v["name"] for v in reply.spec["template"]["spec"]["volumes"]] == ["z"]


def test_tolerations_are_replaced_and_finalizers_are_a_set(api: Api, deployed: str):
    for key in ("a", "b"):
        last = api.strategic(deployed, template(tolerations=[{"key": key, "operator": "Exists"}]))
    assert [t["key"] for t in last.spec["template"]["spec"]["tolerations"]] == ["b"]
    for finalizer in ("example.com/a", "example.com/b"):
        last = api.strategic(deployed, {"metadata": {"finalizers": [finalizer]}})
    assert sorted(last.meta["finalizers"]) == ["example.com/a", "example.com/b"]
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    assert api.strategic(deployed, removal).meta["finalizers"] == ["example.com/b"]
    api.merge(deployed, {"metadata": {"finalizers": None}})


def test_a_merge_patch_replaces_lists(api: Api, deployed: str):
    only = [{"name": "only", "image": "z"}]
    assert containers(api.merge(deployed, template(containers=only))) == ["only"]
