"""No request makes the server fail: whatever is sent is refused, or stored, and can be read again.

Valid requests are bent at a random place: another value, another type, a field more or less. What
the server does then must be an answer that a real one could give.
"""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.support.kube_calls import (
    APPLY,
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    TABLE,
    WIDGETS,
    deployment,
    widget,
    widget_definition,
    with_widgets,
)
from fleetbus_emulator.apiserver import Response
from fleetbus_emulator.apiserver.json_tree import as_list, as_object

JsonObject = dict[str, Any]
SERVICES, JOBS = "/api/v1/namespaces/default/services", "/apis/batch/v1/namespaces/default/jobs"
SECRETS, EVENTS = "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/events"
MANAGED: JsonObject = {
    "manager": "m",
    "operation": "Update",
    "apiVersion": "v1",
    "time": "2026-01-01T00:00:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:data": {".": {}, "f:a": {}}},
}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": True}
META: JsonObject = {
    "name": "x",
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "finalizers": ["example.com/f"],
    "ownerReferences": [OWNER],
    "managedFields": [MANAGED],
}
CONTAINER = {
    "name": "c",
    "image": "i",
    "ports": [{"containerPort": 80, "name": "http"}],
    "env": [{"name": "A", "value": "b"}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
    "readinessProbe": {"httpGet": {"port": 80}},
}
POD_SPEC: JsonObject = {
    "containers": [CONTAINER],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "nodeSelector": {"a": "b"},
    "restartPolicy": "Never",
}
STATUS: JsonObject = {
    "replicas": 1,
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "c", "restartCount": 0, "state": {"running": {}}}],
    "phase": "Running",
}


def workload() -> JsonObject:
    obj = deployment("x", strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}})
    obj["spec"]["template"]["spec"] = {**POD_SPEC, "restartPolicy": "Always"}
    return obj


DOCUMENTS: dict[str, JsonObject] = {
    CONFIGMAPS: {"kind": "ConfigMap", "data": {"a": "b"}, "binaryData": {"c": "aGk="}},
    SECRETS: {"kind": "Secret", "data": {"a": "aGk="}, "stringData": {"b": "c"}, "type": "Opaque"},
    PODS: {"kind": "Pod", "spec": POD_SPEC, "status": STATUS},
    DEPLOYMENTS: {**workload(), "status": STATUS},
    SERVICES: {"kind": "Service", "spec": {"ports": [{"port": 1}], "selector": {"a": "b"}}},
    JOBS: {"kind": "Job", "spec": {"template": {"spec": POD_SPEC}, "completions": 1}},
    EVENTS: {"kind": "Event", "involvedObject": {"kind": "Pod", "name": "p"}, "count": 1},
    WIDGETS: {
        **widget("x", color="red", items=[{"name": "a", "value": "1"}], tags=["t"], replicas=1),
        "status": {"phase": "p", "replicas": 1},
    },
    CRDS: widget_definition("v1beta1"),
}
for place, document in DOCUMENTS.items():
    if place != CRDS:
        document["metadata"] = META
NAMES = {place: document["metadata"]["name"] for place, document in DOCUMENTS.items()}
NAMES[CRDS] = "widgets.example.com"

values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 3, 2**31, 2**63, 1e300, 0.5]),
    st.sampled_from(["", "x", "-", "a/b/c", "\n", "é", "True", "None", "v1", "x" * 300, "2026"]),
    st.sampled_from([[], {}, [None], [[]], [{}], {"": 1}, {"a": None}, [1, "x"], {"a": {"b": []}}]),
)
SCHEMA_WORDS = ["type", "items", "default", "nullable", "enum", "pattern", "multipleOf", "anyOf"]
names = st.sampled_from(["x", "", "a.b", *SCHEMA_WORDS, "x-kubernetes-list-type", "properties"])


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    paths = [path] if path else []
    for key, value_part in (as_object(value) or {}).items():
        paths += places_of(value_part, (*path, key))
    for index, value_part in enumerate(as_list(value) or []):
        paths += places_of(value_part, (*path, index))
    return paths


PLACES = {place: places_of(document) for place, document in DOCUMENTS.items()}


@st.composite
def bent(draw: st.DrawFn, place: str) -> JsonObject:
    """The document of a place, changed in one to three places."""
    changed: Any = copy.deepcopy(DOCUMENTS[place])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(PLACES[place]))
        *above, last = path
        target = changed
        try:
            for step in above:
                target = target[step]
            if isinstance(target, dict) and isinstance(last, int):
                continue  # an earlier change put an object where the list was
            change = draw(st.sampled_from(["set", "drop", "add"]))
            if change == "drop":
                del target[last]
            elif change == "add" and isinstance(target, dict):
                target[draw(names)] = copy.deepcopy(draw(values))
            else:
                target[last] = copy.deepcopy(draw(values))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return changed


# What a real server answers 500 to, too.
EXPECTED_500 = (
    "resourceVersion should not be set on objects to be created",
    "failed to create typed patch object",
    "resourceVersion: Invalid value",
)


def check(answer: Any) -> None:
    """The response is an answer, and no failure."""
    assert isinstance(answer, Response)
    if answer.status < 400:
        return
    if answer.status == 500:
        assert any(text in answer.body.decode() for text in EXPECTED_500)
        return
    if answer.content_type.startswith("application/json"):
        document = orjson.loads(answer.body)
        assert document["kind"] == "Status"
        assert document["reason"]
        assert document["code"] == answer.status


TOLERATED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
slow = settings(max_examples=8, deadline=None, suppress_health_check=TOLERATED)


@pytest.mark.parametrize("place", DOCUMENTS)
@slow
@given(data=st.data())
def test_no_document_makes_the_server_fail(place: str, data: st.DataObject):
    calls = with_widgets()
    first, second = data.draw(bent(place)), data.draw(bent(place))
    path = f"{place}/{NAMES[place]}"
    check(calls.request("POST", place, first, fieldValidation="Strict"))
    check(calls.request("POST", place, first))
    check(calls.request("PUT", path, second))
    check(calls.request("PATCH", path, second, content=MERGE))
    check(calls.request("PATCH", path, second, content=STRATEGIC))
    check(calls.request("PATCH", path, second, content=APPLY, fieldManager="m", force="1"))
    check(calls.request("PUT", f"{path}/status", first))
    check(calls.request("PATCH", f"{path}/scale", second, content=MERGE))
    for accept in ("application/json", TABLE, "application/yaml"):
        check(calls.request("GET", place, accept=accept))
    check(calls.request("POST", WIDGETS, widget("w")))
    check(calls.request("GET", WIDGETS, accept=TABLE))
    check(calls.request("DELETE", path, data.draw(values)))
    check(calls.request("DELETE", place))


OPERATION: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"]) | values,
        "path": st.sampled_from(["/spec", "/spec/tags/-", "/metadata", "", "/", "/spec/items/9"])
        | values,
        "from": st.sampled_from(["/spec/size", "/metadata/labels"]) | values,
        "value": values,
    },
)


@slow
@given(patch=st.lists(OPERATION, max_size=3) | values)
def test_no_json_patch_makes_the_server_fail(patch: Any):
    calls = with_widgets()
    calls.post(WIDGETS, widget("w", tags=["t"], items=[{"name": "a"}]))
    body = orjson.dumps(patch)
    check(calls.request("PATCH", f"{WIDGETS}/w", body, content=JSON_PATCH))
    check(calls.request("PATCH", f"{WIDGETS}/w/scale", body, content=JSON_PATCH))
    check(calls.request("GET", WIDGETS, accept=TABLE))


QUERIES = [
    *("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "timeoutSeconds"),
    *("resourceVersionMatch", "watch", "sendInitialEvents", "allowWatchBookmarks", "dryRun"),
    *("fieldManager", "fieldValidation", "force", "propagationPolicy", "gracePeriodSeconds"),
    *(
        "orphanDependents",
        "pretty",
        "includeObject",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
    ),
]
texts = st.sampled_from(["", "0", "1", "-1", "x", "true", "99999999999999999999", "a=b", "!", "é"])
odd = texts | st.text(max_size=8)
PATHS = [
    *(WIDGETS, CONFIGMAPS, f"{WIDGETS}/w", f"{WIDGETS}/w/status", f"{WIDGETS}/w/scale", PODS),
    *("/api/v1/namespaces", "/api/v1/namespaces/default", "/api/v1/namespaces/default/finalize"),
    *("/apis", "/api", "/api/v1", "/apis/apps", "/", "/version", "/openapi/v3", "/healthz"),
    *(f"{PODS}/p/binding", f"{PODS}/p/eviction", f"{PODS}/p/log", f"{PODS}/p/exec"),
    *("/api/v1/watch/pods", "/apis/example.com/v1/watch/namespaces/default/widgets/w"),
    *("/api/v1/namespaces/default/serviceaccounts/default/token", "//", "/apis//v1/widgets"),
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
]


@slow
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"]),
    path=st.sampled_from(PATHS) | st.text("/abv1:%.é ", max_size=20).map(lambda t: f"/api{t}"),
    query=st.dictionaries(st.sampled_from(QUERIES), odd, max_size=3),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "content": st.sampled_from([MERGE, JSON_PATCH, STRATEGIC, APPLY, "a/b", "", ";", "é"]),
            "accept": st.sampled_from([TABLE, "", ",;=", "*/*", "application/json;as=Table;v=v9"]),
            "agent": odd,
        },
    ),
    body=values.map(orjson.dumps) | st.binary(max_size=8) | st.just(orjson.dumps(widget("w"))),
)
def test_no_request_makes_the_server_fail(
    method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
):
    calls = with_widgets()
    calls.post(WIDGETS, widget("w"))
    answer = calls.request(method, path, body, **headers, **query)
    if not isinstance(answer, Response):
        answer.read()
        calls.cluster.release(answer)
    else:
        check(answer)
