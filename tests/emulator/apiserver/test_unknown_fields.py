"""Fields that a type does not have: dropped, warned of or refused, by fieldValidation."""

from typing import Any

import pytest

from emulator.support.kube_calls import (
    CRDS,
    DEPLOYMENTS,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    WIDGETS,
    Calls,
    deployment,
    widget,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster

WRONG = 'strict decoding error: unknown field "spec.replcas"'


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


@pytest.mark.parametrize(
    ("content", "patch"),
    [
        (MERGE, {"spec": {"replcas": 3}}),
        (STRATEGIC, {"spec": {"replcas": 3}}),
        (JSON_PATCH, [{"op": "add", "path": "/spec/replcas", "value": 3}]),
    ],
)
def test_a_strict_patch_with_an_unknown_field_is_invalid(calls: Calls, content: str, patch: Any):
    calls.post(DEPLOYMENTS, deployment("web"))
    path = f"{DEPLOYMENTS}/web"
    reply = calls.call("PATCH", path, patch, content=content, fieldValidation="Strict")
    assert (reply.status, reply.document["reason"]) == (422, "Invalid")
    assert reply.document["details"]["causes"][0]["field"] == "patch"
    assert reply.message.startswith(' "" is invalid: patch: Invalid value: ')
    assert reply.message.endswith(WRONG)
    warned = calls.call("PATCH", path, patch, content=content)
    assert warned.headers["Warning"] == '299 - "unknown field \\"spec.replcas\\""'


def test_a_strict_patch_of_a_custom_resource_is_reported_the_same(calls: Calls):
    calls.post(CRDS, widget_definition())
    calls.post(WIDGETS, widget("w"))
    reply = calls.merge(f"{WIDGETS}/w", {"spec": {"replcas": 3}}, fieldValidation="Strict")
    assert (reply.status, reply.message.endswith(WRONG)) == (422, True)


def test_an_applied_field_outside_the_schema_is_reported_by_the_keys_of_its_items(
    calls: Calls,
):
    obj = deployment("web", replcas=3)
    (container,) = obj["spec"]["template"]["spec"]["containers"]
    container |= {"cpu": "1", "ports": [{"containerPort": 80, "prt": 1}], "args": ["a"]}
    reply = calls.apply(f"{DEPLOYMENTS}/web", obj, "m")
    assert (reply.status, "reason" in reply.document) == (500, False)
    spec = '.spec.template.spec.containers[name="c"]'
    why = "field not declared in schema"
    assert set(reply.message.splitlines()[1:]) == {
        f'  {spec}.ports[containerPort=80,protocol="TCP"].prt: {why}',
        f"  {spec}.cpu: {why}",
        f"  .spec.replcas: {why}",
    }


def test_items_of_lists_that_are_not_merged_are_reported_by_number(calls: Calls):
    calls.post(CRDS, widget_definition())
    obj = widget("w", items=[{"name": "a", "wrong": 1}])
    reply = calls.apply(f"{WIDGETS}/w", obj, "m")
    assert '.spec.items[name="a"].wrong: field not declared in schema' in reply.message
    pod = deployment("web")
    pod["spec"]["template"]["spec"]["tolerations"] = [{"ky": "a"}]
    reply = calls.apply(f"{DEPLOYMENTS}/web", pod, "m")
    assert ".spec.template.spec.tolerations[0].ky: field not declared" in reply.message
