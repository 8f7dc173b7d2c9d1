"""status, scale, binding, eviction, and reviews."""

from __future__ import annotations

import pytest

from support.api.conformance_client import Api
from support.api.conformance_objects import Space, deployment, pod


@pytest.fixture
def one(api: Api, space: Space, name: str) -> str:
    """The path of a widget."""
    assert api.post(space.widgets, space.widget(name)).status == 201
    return f"{space.widgets}/{name}"


def test_the_object_ignores_status(api: Api, one: str):
    before = api.get(one)
    reply = api.merge(one, {"status": {"phase": "HACK"}})
    assert "status" not in reply.body
    assert reply.rv == before.rv


def test_status_ignores_all_else(api: Api, one: str):
    patch = {"spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}, "status": {"phase": "S"}}
    reply = api.merge(f"{one}/status", patch)
    assert (reply.spec["size"], reply.body["status"]) == (3, {"phase": "S"})
    assert "labels" not in reply.meta
    assert reply.meta["generation"] == 1


def test_status_of_a_deployment_takes_annotations(api: Api, space: Space, name: str):
    path = f"{space.apps('deployments')}/{name}"
    api.post(space.apps("deployments"), deployment(name))
    patch = {"metadata": {"labels": {"q": "1"}, "annotations": {"an": "1"}}}
    reply = api.merge(f"{path}/status", patch)
    assert "labels" not in reply.meta
    assert reply.meta["annotations"]["an"] == "1"


@pytest.mark.since("1.34")
def test_status_is_validated(api: Api, one: str):
    reply = api.merge(f"{one}/status", {"status": {"phase": 5}})
    assert reply.causes == [("status.phase", "FieldValueTypeInvalid")]


def test_scale_shows_and_sets_replicas(api: Api, one: str, name: str):
    status = {"replicas": 2, "selector": f"app={name}"}
    widget = api.merge(f"{one}/status", {"status": status})
    reply = api.get(f"{one}/scale")
    assert (reply.kind, reply.body["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (reply.spec, reply.body["status"]) == ({"replicas": 3}, status)
    assert reply.meta["uid"] == widget.meta["uid"]
    assert reply.rv == widget.rv
    patched = api.merge(f"{one}/scale", {"spec": {"replicas": 7}})
    assert (patched.kind, patched.spec["replicas"]) == ("Scale", 7)
    after = api.get(one)
    assert (after.spec["replicas"], after.meta["generation"]) == (7, 2)


def test_scale_has_no_status_where_the_object_has_none(api: Api, one: str):
    assert api.get(f"{one}/scale").body["status"] == {"replicas": 0}


def test_scale_checks_the_version(api: Api, space: Space, name: str, one: str):
    scale = api.get(f"{one}/scale").body
    api.merge(one, {"spec": {"size": 4}})
    reply = api.put(f"{one}/scale", scale)
    assert reply.failed == (409, "Conflict")
    assert reply.details == {"name": name, "group": space.group, "kind": "widgets"}


def test_scale_of_a_deployment_tells_its_selector(api: Api, space: Space, name: str):
    api.post(space.apps("deployments"), deployment(name))
    reply = api.get(f"{space.apps('deployments')}/{name}/scale")
    assert reply.body["status"]["selector"] == f"app={name}"


def test_a_subresource_that_is_not_there_is_no_path(api: Api, one: str):
    assert api.get(f"{one}/nothing").status == 404
    assert api.post(f"{one}/status", {}).failed == (405, "MethodNotAllowed")


def test_a_binding_names_the_node(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    api.post(space.core("pods"), pod(name, schedulerName="nobody"))
    target = {"kind": "Node", "name": "no-such-node"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    reply = api.post(f"{path}/binding", {**binding, "target": target})
    assert (reply.status, reply.body["status"]) == (201, "Success")
    assert api.get(path).spec["nodeName"] == "no-such-node"
    assert api.post(f"{path}/binding", {**binding, "target": target}).failed == (409, "Conflict")
    api.delete(path, gracePeriodSeconds="0")


def test_an_eviction_deletes(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    assert api.post(f"{path}/eviction", eviction).failed == (404, "NotFound")
    api.post(space.core("pods"), pod(name, schedulerName="nobody"))
    assert api.post(f"{path}/eviction", eviction).status == 201
    assert api.get(path).status == 404


def test_an_administrator_may_do_anything(api: Api):
    attributes = {"verb": "create", "resource": "pods"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    reply = api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert (reply.status, reply.body["status"]["allowed"]) == (201, True)
