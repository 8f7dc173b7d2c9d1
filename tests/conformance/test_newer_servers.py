"""Recorded answers of Kubernetes 1.34.1, where older servers or guesses differ."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from support.api.conformance_client import PARTIAL_LIST, Api, until
from support.api.conformance_objects import Space, config_map, definition, deployment, pod

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_FOUND = (404, "NotFound")


@pytest.mark.parametrize("path", ["/api/v2", "/apis/apps/nothing", "/apis/apps/v1/nothing"])
def test_below_a_built_in_group_an_unknown_path_is_a_status(api: Api, path: str):
    reply = api.get(path)
    assert reply.failed == NOT_FOUND
    assert reply.message == "the server could not find the requested resource"
    assert reply.details == {}


@pytest.mark.parametrize("path", ["/nothing", "/apis/nothing.io/v1/things"])
def test_elsewhere_an_unknown_path_is_plain_text(api: Api, path: str):
    reply = api.get(path)
    assert (reply.status, reply.text) == (404, "404 page not found\n")


def test_an_empty_list_of_metadata_is_null(api: Api, space: Space):
    nothing = {"fieldSelector": "metadata.name=nothing"}  # other cases leave some there
    reply = api.get(space.core("endpoints"), accept=PARTIAL_LIST, **nothing)
    assert (reply.kind, reply.items) == ("PartialObjectMetadataList", None)


@pytest.mark.patient
def test_a_future_version_says_when_to_try_again(api: Api, space: Space, name: str):
    assert api.post(space.core("configmaps"), config_map(name)).status == 201
    for path in (space.core("configmaps"), f"{space.core('configmaps')}/{name}"):
        reply = api.get(path, resourceVersion="9999999999999999")
        assert reply.failed == (504, "Timeout")
        assert reply.headers["retry-after"] == "1"
        assert reply.details["retryAfterSeconds"] == 1


@pytest.mark.since("1.34")
def test_a_put_of_a_missing_object_with_a_uid_finds_nothing(api: Api, space: Space, name: str):
    path = f"{space.core('configmaps')}/{name}"
    assert api.put(path, config_map(name, {"uid": "x"})).failed == NOT_FOUND


def test_a_uid_precondition_names_the_key_of_the_object(api: Api, space: Space, name: str):
    created = api.post(space.widgets, space.widget(name))
    body = {**created.body, "metadata": {**created.meta, "uid": "another"}}
    reply = api.put(f"{space.widgets}/{name}", body)
    assert reply.failed == (409, "Conflict")
    key = f"/registry/{space.group}/widgets/{space.namespace}/{name}"
    assert f"Key: {key}, ResourceVersion: 0" in reply.message


def test_an_eviction_names_its_pod(api: Api, space: Space, name: str):
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "another"}}
    reply = api.post(f"{space.core('pods')}/{name}/eviction", eviction)
    assert reply.failed == (400, "BadRequest")
    assert reply.message == "name in URL does not match name in Eviction object"


@pytest.mark.since("1.34")
def test_pods_have_a_generation(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    created = api.post(space.core("pods"), pod(name))
    assert created.meta["generation"] == 1
    assert api.merge(path, {"metadata": {"labels": {"a": "b"}}}).meta["generation"] == 1
    image = {"spec": {"containers": [{"name": "c", "image": "another"}]}}
    assert api.strategic(path, image).meta["generation"] == 2
    api.delete(path, gracePeriodSeconds="0")


@pytest.mark.since("1.34")
def test_refusals_show_values_as_json(api: Api, space: Space, name: str):
    body = deployment(name)
    body["spec"]["template"]["metadata"]["labels"] = {"app": "another"}
    reply = api.post(space.apps("deployments"), body)
    assert reply.failed == (422, "Invalid")
    assert 'Invalid value: {"app":"another"}: `selector` does not match' in reply.message


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("99 * * * *", "end of range (99) above maximum (59): 99"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("*/5/2 * * * *", "too many slashes: */5/2"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("@foo", "unrecognized descriptor: @foo"),
        ("@every bad", 'failed to parse duration @every bad: time: invalid duration "bad"'),
        ("TZ=UTC * * * * *", "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(
    api: Api, space: Space, name: str, schedule: str, why: str
):
    reply = api.post(cron_jobs(space), cron_job(name, schedule=schedule), dryRun="All")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("spec.schedule", "FieldValueInvalid")]
    assert reply.details["causes"][0]["message"].endswith(f": {why}")


@pytest.mark.parametrize(
    "schedule", ["*/5 1-3,7 * JAN MON", "* * ? * ?", "@hourly", "@every 1h30m", " 0 0 1 1 * "]
)
def test_a_schedule_has_many_forms(api: Api, space: Space, name: str, schedule: str):
    body = cron_job(name, schedule=schedule, timeZone="Europe/Berlin")
    assert api.post(cron_jobs(space), body, dryRun="All").status == 201


@pytest.mark.parametrize("zone", ["Nope/Zone", "", "Local"])
def test_a_time_zone_has_to_be_known(api: Api, space: Space, name: str, zone: str):
    body = cron_job(name, schedule="* * * * *", timeZone=zone)
    reply = api.post(cron_jobs(space), body, dryRun="All")
    assert reply.causes == [("spec.timeZone", "FieldValueInvalid")]


def cron_jobs(space: Space) -> str:
    return f"/apis/batch/v1/namespaces/{space.namespace}/cronjobs"


def cron_job(name: str, **spec: str) -> dict[str, Any]:
    pods = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    job = {"spec": {"template": {"spec": pods}}}
    return {"metadata": {"name": name}, "spec": {"jobTemplate": job, **spec}}


# --- selectable fields ----------------------------------------------------------------------------


def selectable(space: Space, plural: str, *paths: str) -> dict[str, Any]:
    """A definition whose objects can be selected by these paths."""
    body = definition(space.group, plural, plural.capitalize())
    (version,) = body["spec"]["versions"]
    version["selectableFields"] = [{"jsonPath": path} for path in paths]
    return body


@pytest.fixture
def gadgets(api: Api, space: Space) -> Generator[str]:
    """The path of objects that can be selected by color and size."""
    body = selectable(space, "gadgets", ".spec.color", ".spec.size")
    path = f"/apis/{space.group}/v1/namespaces/{space.namespace}/gadgets"
    assert api.post(CRDS, body).status == 201
    until(lambda: api.get(path).status == 200)
    for name, spec in {
        "a": {"size": 1, "color": "red"},
        "b": {"size": 2},
        "c": {"size": 2, "color": "red"},
    }.items():
        gadget = {"apiVersion": f"{space.group}/v1", "kind": "Gadgets"}
        assert api.post(path, {**gadget, "metadata": {"name": name}, "spec": spec}).status == 201
    yield path
    api.delete(f"{CRDS}/gadgets.{space.group}")


@pytest.mark.since("1.32")
def test_custom_resources_are_selected_by_the_fields_of_their_definition(api: Api, gadgets: str):
    for selector, names in {
        "spec.color=red": ["a", "c"],
        "spec.color!=red": ["b"],
        "spec.color=": ["b"],
        "spec.size=2,spec.color=red": ["c"],
    }.items():
        assert api.get(gadgets, fieldSelector=selector).names == names, selector
    assert api.get(gadgets, fieldSelector="spec.note=x").failed == (400, "BadRequest")
    stream = api.watch(gadgets, 2, fieldSelector="spec.color=red")
    assert stream.changes == ["ADDED:a", "ADDED:c"]


@pytest.mark.since("1.32")
@pytest.mark.parametrize(
    ("paths", "reason", "why"),
    [
        ([""], "FieldValueRequired", "Required value"),
        (["spec.color"], "FieldValueInvalid", "expected [ or . but got: spec"),
        ([".spec.none"], "FieldValueInvalid", "does not refer to a valid field"),
        ([".metadata.name"], "FieldValueInvalid", "does not refer to a valid field"),
        ([".spec.items"], "FieldValueInvalid", "must point to a field of type string, boolean or"),
        ([".spec.plain[0]"], "FieldValueInvalid", "array notation is not allowed"),
        ([".spec.color", ".spec.color"], "FieldValueDuplicate", 'Duplicate value: ".spec.color"'),
    ],
)
def test_a_selectable_field_is_a_simple_one_of_the_schema(
    api: Api, space: Space, paths: list[str], reason: str, why: str
):
    reply = api.post(CRDS, selectable(space, "gizmos", *paths), dryRun="All")
    assert reply.failed == (422, "Invalid")
    (cause,) = reply.details["causes"]
    assert cause["field"] == f"spec.selectableFields[{len(paths) - 1}].jsonPath"
    assert cause["reason"] == reason
    assert why in cause["message"]


# --- what a cluster begins with, and what controllers say -----------------------------------------


def test_the_priority_classes_of_the_system_are_there(api: Api):
    classes = api.get("/apis/scheduling.k8s.io/v1/priorityclasses").items
    values = {item["metadata"]["name"]: item["value"] for item in classes}
    assert values["system-cluster-critical"] == 2_000_000_000
    assert values["system-node-critical"] == 2_000_001_000


def test_replica_sets_say_which_pods_they_made(api: Api, space: Space, name: str):
    assert api.post(space.apps("deployments"), deployment(name, replicas=1)).status == 201

    def said() -> list[str]:
        query = "involvedObject.kind=ReplicaSet,reason=SuccessfulCreate"
        events = api.get(space.core("events"), fieldSelector=query).items
        return [item["message"] for item in events if f"pod: {name}-" in item["message"]]

    until(lambda: bool(said()))
    (message,) = said()
    api.get(f"{space.core('pods')}/{message.removeprefix('Created pod: ')}")
    assert message.startswith(f"Created pod: {name}-")
    api.delete(f"{space.apps('deployments')}/{name}")
