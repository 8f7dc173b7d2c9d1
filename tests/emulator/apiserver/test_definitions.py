"""Custom resource definitions: serving, schema, versions, going away."""

import copy
from datetime import timedelta

import pytest

from emulator.support.kube_calls import (
    CRDS,
    STRATEGIC,
    WIDGETS,
    Calls,
    changes,
    widget,
    widget_definition,
)
from fleetbus_emulator.apiserver import Change, Cluster
from support.eventually import eventually

DEFINITION = f"{CRDS}/widgets.example.com"


@pytest.fixture
def calls() -> Calls:
    calls = Calls(Cluster("alpha", seed=1))
    calls.post(CRDS, widget_definition("v1beta1"))
    return calls


def test_a_definition_becomes_established_and_served(calls: Calls):
    status = calls.get(DEFINITION).document["status"]
    assert {c["type"] for c in status["conditions"]} == {"Established", "NamesAccepted"}
    assert status["acceptedNames"]["listKind"] == "WidgetList"
    assert status["storedVersions"] == ["v1"]
    assert calls.get(WIDGETS).document["kind"] == "WidgetList"


async def test_a_new_resource_is_404_for_the_definition_delay():
    calls = Calls(Cluster("alpha", definition_delay=timedelta(milliseconds=20)))
    calls.post(CRDS, widget_definition())
    assert calls.get(WIDGETS).document == "404 page not found\n"
    await eventually(lambda: calls.get(WIDGETS).status == 200)


def test_bad_definitions_are_refused():
    calls = Calls(Cluster("alpha"))
    wrong = widget_definition()
    wrong["metadata"]["name"] = "other.example.com"
    assert calls.post(CRDS, wrong).status == 422
    bare = widget_definition()
    del bare["spec"]["versions"][0]["schema"]
    assert calls.post(CRDS, bare).status == 422


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"size": 99}, "spec.size", "should be less than or equal to 10"),
        ({"size": None}, "spec.size", "Required value"),
        ({"size": 1, "color": "blue"}, "spec.color", 'supported values: "red", "green"'),
        ({"size": 1, "free": "text"}, "spec.free", "must be of type object"),
        ({"size": 1, "items": [{"value": "v"}]}, "spec.items[0].name", "Required value"),
        ({"size": 1, "port": True}, "spec.port", "must be of type integer or string"),
    ],
)
def test_objects_are_validated(calls: Calls, spec: dict[str, object], field: str, message: str):
    body = {**widget("w"), "spec": spec}
    reply = calls.post(WIDGETS, body)
    assert reply.status == 422
    (cause,) = reply.document["details"]["causes"]
    assert cause["field"] == field
    assert message in cause["message"]


def test_objects_are_pruned_and_defaulted(calls: Calls):
    reply = calls.post(WIDGETS, widget("w", bogus=1, free={"any": 1}, note=None, replicas=None))
    assert reply.document["spec"] == {"size": 3, "replicas": 3, "free": {"any": 1}, "note": None}
    assert reply.headers["Warning"] == '299 - "unknown field \\"spec.bogus\\""'


def test_strict_validation_refuses_unknown_fields(calls: Calls):
    reply = calls.post(WIDGETS, widget("w", bogus=1), fieldValidation="Strict")
    assert reply.status == 400
    assert 'strict decoding error: unknown field "spec.bogus"' in reply.message


def test_versions_share_storage_and_each_watch_speaks_its_own(calls: Calls):
    created = calls.post(WIDGETS, widget("w"))
    beta = WIDGETS.replace("/v1/", "/v1beta1/")
    read = calls.get(f"{beta}/w")
    assert read.document["apiVersion"] == "example.com/v1beta1"
    assert read.rv == created.rv
    assert b'"apiVersion":"example.com/v1beta1"' in calls.watch(beta).read()
    assert calls.post(beta, widget("x")).status == 400


def test_a_changed_definition_is_served_at_once_and_keeps_its_objects(calls: Calls):
    calls.post(WIDGETS, widget("w"))
    version = calls.get(DEFINITION).document["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["weight"] = {"type": "integer", "default": 7}
    assert calls.merge(DEFINITION, {"spec": {"versions": [version]}}).status == 200
    assert calls.merge(f"{WIDGETS}/w", {"spec": {"size": 4}}).document["spec"]["weight"] == 7
    assert calls.get(WIDGETS.replace("/v1/", "/v1beta1/")).status == 404
    assert calls.get(DEFINITION).document["status"]["conditions"]


def test_status_is_apart_and_scale_follows_its_paths(calls: Calls):
    calls.post(WIDGETS, {**widget("w"), "status": {"phase": "X"}})
    path = f"{WIDGETS}/w"
    assert "status" not in calls.get(path).document
    sub = calls.merge(
        f"{path}/status", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Y"}}
    )
    assert sub.document["status"] == {"phase": "Y"}
    assert "labels" not in sub.meta
    assert sub.meta["generation"] == 1
    assert calls.merge(f"{path}/scale", {"spec": {"replicas": 9}}).document["spec"] == {
        "replicas": 9
    }
    assert calls.get(path).document["spec"]["replicas"] == 9


def test_setting_a_default_changes_nothing(calls: Calls):
    created = calls.post(WIDGETS, widget("w"))
    assert calls.merge(f"{WIDGETS}/w", {"spec": {"replicas": 3}}).rv == created.rv
    assert calls.merge(f"{WIDGETS}/w", {"spec": {"replicas": None}}).rv == created.rv


def test_custom_resources_need_a_version_on_put_and_refuse_strategic_merges(calls: Calls):
    calls.post(WIDGETS, widget("w"))
    assert calls.put(f"{WIDGETS}/w", widget("w", size=4)).status == 422
    assert calls.call("PATCH", f"{WIDGETS}/w", {}, content=STRATEGIC).status == 415
    assert calls.post(WIDGETS, {"metadata": {"name": "x"}}).status == 400


def test_printer_columns_replace_age(calls: Calls):
    calls.post(WIDGETS, widget("w"))
    table = calls.get(WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io").document
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size"]
    assert table["rows"][0]["cells"] == ["w", 3]


def test_a_deleted_definition_takes_its_objects_along_and_ends_watches(calls: Calls):
    calls.post(WIDGETS, widget("w"))
    watch = calls.watch(WIDGETS, resourceVersion=calls.get(WIDGETS).rv)
    deleted = calls.delete(DEFINITION)
    assert deleted.meta["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert changes(watch) == ["DELETED:w"]
    assert watch.ended
    assert calls.get(DEFINITION).status == 404
    assert calls.get(WIDGETS).document == "404 page not found\n"


def test_an_object_with_a_finalizer_holds_its_definition(calls: Calls):
    calls.post(WIDGETS, widget("held", {"finalizers": ["a.b/c"]}))
    calls.delete(DEFINITION)
    assert "deletionTimestamp" in calls.get(f"{WIDGETS}/held").meta
    assert calls.post(WIDGETS, widget("late")).status == 403
    calls.merge(f"{WIDGETS}/held", {"metadata": {"finalizers": None}})
    assert calls.get(DEFINITION).status == 404


def test_openapi_names_the_kinds_for_kubectl(calls: Calls):
    root = calls.get("/openapi/v3").document["paths"]
    path, _, _ = root["apis/example.com/v1"]["serverRelativeURL"].partition("?")
    document = calls.get(path).document
    schema = document["components"]["schemas"]["com.example.v1.Widget"]
    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "Widget"}
    ]


def test_no_apply_creates_an_object_of_a_definition_that_is_going(calls: Calls):
    calls.post(WIDGETS, widget("held", {"finalizers": ["example.com/f"]}))
    calls.delete(DEFINITION)
    answer = calls.apply(f"{WIDGETS}/late", widget("late"), "m")
    assert (answer.status, answer.document["reason"]) == (403, "Forbidden")
    assert calls.apply(f"{WIDGETS}/held", widget("held", color="red"), "m").status == 200


def test_values_that_only_python_finds_equal_are_changes(calls: Calls):
    calls.post(WIDGETS, widget("a", free={"x": 1}))
    answer = calls.merge(f"{WIDGETS}/a", {"spec": {"free": {"x": True}}})
    assert answer.document["spec"]["free"] == {"x": True}
    assert answer.document["spec"]["free"]["x"] is True
    assert answer.meta["generation"] == 2


@pytest.mark.parametrize("endpoint", ["", "/status"])
def test_what_was_stored_never_changes_also_when_its_definition_did(calls: Calls, endpoint: str):
    calls.post(WIDGETS, widget("a", color="red"))
    calls.merge(f"{WIDGETS}/a/status", {"status": {"phase": "old"}})
    definition = calls.get(DEFINITION).document
    for version in definition["spec"]["versions"]:
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        del properties["spec"]["properties"]["color"]
        properties["status"]["properties"]["phase"]["default"] = "none"
        properties["status"]["properties"]["new"] = {"type": "string", "default": "d"}
    assert calls.put(DEFINITION, definition).status == 200
    committed: list[Change] = []
    calls.cluster.subscribe(committed.append)
    (before,) = calls.cluster.shared("example.com/v1/widgets")
    copied = copy.deepcopy(before)
    body = {**calls.get(f"{WIDGETS}/a").document, "status": {"phase": "new"}}
    body["spec"] = {"size": 4}
    assert calls.put(f"{WIDGETS}/a{endpoint}", body, agent="another/1").status == 200
    assert before == copied
    assert committed[-1].old == copied
