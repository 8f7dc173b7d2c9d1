"""PUT: conflicts, no-op writes, generation, what never changes."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.conformance_client import Api, until
from support.api.conformance_objects import Space, config_map, deployment, pod

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


@pytest.fixture
def one(api: Api, space: Space, name: str) -> str:
    """The path of a widget."""
    assert api.post(space.widgets, space.widget(name)).status == 201
    return f"{space.widgets}/{name}"


def test_an_old_version_is_a_conflict(api: Api, space: Space, name: str, one: str):
    stale = api.get(one).body
    api.merge(one, {"spec": {"size": 4}})
    reply = api.put(one, stale)
    assert reply.failed == (409, "Conflict")
    assert reply.details == {"name": name, "group": space.group, "kind": "widgets"}
    assert reply.message == (
        f'Operation cannot be fulfilled on widgets.{space.group} "{name}": {MODIFIED}'
    )


@pytest.mark.parametrize("sub", ["", "/status"])
def test_a_patch_with_an_old_version_is_a_conflict(api: Api, one: str, sub: str):
    old = {"metadata": {"resourceVersion": "1"}, "spec": {"size": 5}, "status": {"phase": "x"}}
    assert api.merge(one + sub, old).failed == (409, "Conflict")
    replace = {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}
    assert api.json_patch(one + sub, replace).failed == (409, "Conflict")


@pytest.mark.parametrize("meta", [{}, {"resourceVersion": "0"}])
def test_a_custom_resource_needs_a_version(
    api: Api, space: Space, name: str, one: str, meta: dict[str, str]
):
    reply = api.put(one, space.widget(name, meta, size=5))
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("metadata.resourceVersion", "FieldValueInvalid")]
    assert "must be specified for an update" in reply.message


def test_most_built_in_types_need_none(api: Api, space: Space, name: str):
    path = f"{space.core('configmaps')}/{name}"
    api.post(space.core("configmaps"), config_map(name, a="1"))
    assert api.put(path, config_map(name, a="2")).body["data"] == {"a": "2"}


def test_another_uid_is_a_conflict_in_a_put_and_invalid_in_a_patch(
    api: Api, space: Space, name: str, one: str
):
    meta = {"uid": "00000000-0000-0000-0000-000000000000", "resourceVersion": api.get(one).rv}
    assert api.put(one, space.widget(name, meta)).failed == (409, "Conflict")
    reply = api.merge(one, {"metadata": {"uid": "x"}})
    assert reply.failed == (422, "Invalid")
    assert set(reply.causes) == {("metadata.uid", "FieldValueInvalid")}


def test_the_name_is_that_of_the_url(api: Api, space: Space, name: str, one: str):
    reply = api.put(one, space.widget("other"))
    assert reply.failed == (400, "BadRequest")
    text = f"the name of the object (other) does not match the name on the URL ({name})"
    assert reply.message == text


def test_what_is_not_there_is_not_found(api: Api, space: Space, name: str):
    reply = api.put(f"{space.widgets}/{name}", space.widget(name))
    assert reply.failed == (404, "NotFound")
    assert reply.message == f'widgets.{space.group} "{name}" not found'
    assert reply.details == {"name": name, "group": space.group, "kind": "widgets"}
    assert api.put(f"{space.core('configmaps')}/{name}", config_map(name)).status == 404


def test_a_lease_is_created_by_a_put_and_keeps_microseconds(api: Api, space: Space, name: str):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases/{name}"
    spec = {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000001Z"}
    created = api.put(path, {"metadata": {"name": name}, "spec": spec})
    assert (created.status, created.spec["renewTime"]) == (201, spec["renewTime"])
    taken = api.put(path, {**created.body, "spec": {**spec, "holderIdentity": "b"}})
    assert taken.status == 200
    late = api.put(path, {**created.body, "spec": {**spec, "holderIdentity": "c"}})
    assert late.failed == (409, "Conflict")


def test_a_lease_and_a_disruption_budget_need_a_version(api: Api, space: Space, name: str):
    rules = {"minAvailable": 0, "selector": {"matchLabels": {"case": name}}}
    for group, plural, spec in (
        ("coordination.k8s.io", "leases", {"holderIdentity": "a"}),
        ("policy", "poddisruptionbudgets", rules),
    ):
        path = f"/apis/{group}/v1/namespaces/{space.namespace}/{plural}"
        assert api.post(path, {"metadata": {"name": name}, "spec": spec}).status == 201
        reply = api.put(f"{path}/{name}", {"metadata": {"name": name}, "spec": spec})
        assert reply.failed == (422, "Invalid")
        assert reply.causes == [("metadata.resourceVersion", "FieldValueInvalid")]


def test_roles_and_services_are_created_by_a_put(api: Api, space: Space, name: str):
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.namespace}/roles"
    role: dict[str, Any] = {"metadata": {"name": name}, "rules": []}
    assert api.put(f"{roles}/{name}", role).status == 201
    service = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}
    assert api.put(f"{space.core('services')}/{name}", service).status == 201


def test_a_collection_cannot_be_put(api: Api, space: Space, name: str):
    for reply in (api.put(space.widgets, space.widget(name)), api.merge(space.widgets, {})):
        assert reply.failed == (400, "BadRequest")
        assert reply.message == "name must be provided"


# no-op writes and generation --------------------------------------------------------------------


def test_a_write_that_changes_nothing_moves_nothing(api: Api, one: str):
    before = api.get(one)
    for reply in (api.put(one, before.body), api.merge(one, {}), api.put(one, before.body)):
        assert (reply.status, reply.rv) == (200, before.rv)
    status = api.merge(f"{one}/status", {"status": {"phase": "P"}})
    again = api.put(f"{one}/status", status.body)
    assert again.rv == status.rv


def test_a_default_said_aloud_changes_nothing(api: Api, one: str):
    before = api.get(one)
    for replicas in (3, None):
        reply = api.merge(one, {"spec": {"replicas": replicas}})
        assert (reply.rv, reply.spec["replicas"]) == (before.rv, 3)


def test_generation_counts_changes_of_the_spec(api: Api, one: str):
    changes: list[tuple[str, dict[str, Any], int]] = [
        ("", {"metadata": {"labels": {"l": "1"}}}, 1),
        ("", {"spec": {"size": 6}}, 2),
        ("/status", {"status": {"phase": "Ready"}}, 2),
        ("", {"metadata": {"annotations": {"a": "1"}}}, 2),
    ]
    for sub, patch, generation in changes:
        assert api.merge(one + sub, patch).meta["generation"] == generation


def test_an_annotation_moves_the_generation_of_a_deployment(api: Api, space: Space, name: str):
    path = f"{space.apps('deployments')}/{name}"
    api.post(space.apps("deployments"), deployment(name))
    start = until(lambda: api.get(path)).meta["generation"]
    annotated = api.merge(path, {"metadata": {"annotations": {"x": "y"}}}).meta["generation"]
    assert annotated == start + 1
    assert api.merge(path, {"metadata": {"labels": {"x": "y"}}}).meta["generation"] == annotated


def test_some_types_have_no_generation(api: Api, space: Space, name: str):
    assert "generation" not in api.post(space.core("configmaps"), config_map(name)).meta
    assert "generation" not in api.post(space.core("secrets"), {"metadata": {"name": name}}).meta
    account = api.post(space.core("serviceaccounts"), {"metadata": {"name": name}})
    assert "generation" not in account.meta


# what never changes -----------------------------------------------------------------------------


def test_the_selector_of_a_deployment_never_changes(api: Api, space: Space, name: str):
    api.post(space.apps("deployments"), deployment(name))
    moved = deployment(name)
    labels = {"app": name, "z": "z"}
    moved["spec"]["selector"]["matchLabels"] = labels
    moved["spec"]["template"]["metadata"]["labels"] = labels
    reply = api.put(f"{space.apps('deployments')}/{name}", moved)
    assert reply.failed == (422, "Invalid")
    assert ("spec.selector", "FieldValueInvalid") in reply.causes
    assert "field is immutable" in reply.message


def test_little_of_a_pod_changes(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    until(lambda: api.get(f"{space.core('serviceaccounts')}/default").status == 200)
    api.post(space.core("pods"), pod(name, schedulerName="nobody"))
    image = {"spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}}
    assert api.strategic(path, image).status == 200
    variable = {"name": "c", "env": [{"name": "x", "value": "y"}]}
    reply = api.strategic(path, {"spec": {"containers": [variable]}})
    assert reply.failed == (422, "Invalid")
    assert ("spec", "FieldValueForbidden") in reply.causes


def test_immutable_data_stays(api: Api, space: Space, name: str):
    path = f"{space.core('configmaps')}/{name}"
    api.post(space.core("configmaps"), {**config_map(name, a="1"), "immutable": True})
    reply = api.merge(path, {"data": {"a": "2"}})
    assert reply.failed == (422, "Invalid")
    assert ("data", "FieldValueForbidden") in reply.causes
    assert api.merge(path, {"metadata": {"labels": {"a": "b"}}}).status == 200
