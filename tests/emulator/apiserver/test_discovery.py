"""Served types and paths: discovery in both forms, OpenAPI, health, version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from emulator.support.kube_calls import CRDS, Calls, widget_definition
from fleetbus_emulator.apiserver import Cluster, Response
from fleetbus_emulator.apiserver.encoding import messages
from fleetbus_emulator.apiserver.encoding.protobuf_wire import read_fields
from fleetbus_emulator.apiserver.json_tree import as_list, as_object
from fleetbus_emulator.apiserver.openapi.encode import DOCUMENT_DEFINITIONS, DOCUMENT_PATHS
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
ASKED = f"{AGGREGATED.format('v2')},{AGGREGATED.format('v2beta1')},application/json"
OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


def raw(calls: Calls, path: str, **options: str) -> Response:
    answer = calls.request("GET", path, **options)
    assert isinstance(answer, Response)
    return answer


def groups_of(aggregated: JsonObject) -> list[str]:
    return [item["metadata"]["name"] for item in aggregated["items"]]


def test_aggregated_discovery_has_an_entity_tag_and_follows_definitions_at_once(calls: Calls):
    first = calls.get("/apis", accept=ASKED)
    assert first.headers["Vary"] == "Accept"
    same = raw(calls, "/apis", accept=ASKED, if_none_match=first.headers["ETag"])
    assert (same.status, same.body) == (304, b"")
    calls.post(CRDS, widget_definition())
    changed = calls.get("/apis", accept=ASKED, if_none_match=first.headers["ETag"])
    assert changed.status == 200
    assert changed.headers["ETag"] != first.headers["ETag"]
    assert groups_of(changed.document)[-1] == "example.com"
    calls.delete(f"{CRDS}/widgets.example.com")
    again = raw(calls, "/apis", accept=ASKED, if_none_match=first.headers["ETag"])
    assert again.status == 304


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
def test_both_versions_of_aggregated_discovery_are_spoken(calls: Calls, version: str):
    reply = calls.get("/api", accept=AGGREGATED.format(version))
    assert reply.content_type == AGGREGATED.format(version)
    assert reply.document["apiVersion"] == f"apidiscovery.k8s.io/{version}"


def test_who_asks_for_an_unknown_version_of_aggregated_discovery_gets_the_legacy_form(calls: Calls):
    reply = calls.get("/apis", accept=f"{AGGREGATED.format('v3')},application/json")
    assert (reply.document["kind"], reply.content_type) == ("APIGroupList", "application/json")


def test_aggregated_discovery_tells_names_scopes_verbs_and_subresources(calls: Calls):
    calls.post(CRDS, widget_definition())
    items = calls.get("/apis", accept=ASKED).document["items"]
    (group,) = [item for item in items if item["metadata"]["name"] == "example.com"]
    (widgets,) = group["versions"][0]["resources"]
    assert widgets["resource"] == "widgets"
    assert widgets["singularResource"] == "widget"
    assert widgets["shortNames"] == ["wd"]
    assert widgets["scope"] == "Namespaced"
    assert widgets["responseKind"] == {"group": "example.com", "version": "v1", "kind": "Widget"}
    status, scale = widgets["subresources"]
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert (status["subresource"], status["verbs"]) == ("status", ["get", "patch", "update"])


def test_kubernetes_own_groups_come_first_whatever_the_others_are_called(calls: Calls):
    definition = widget_definition()
    definition["metadata"]["name"] = "deployments.a.example.com"
    definition["spec"]["group"] = "a.example.com"
    definition["spec"]["names"] = {"plural": "deployments", "kind": "Deployment"}
    calls.post(CRDS, definition)
    names = [group["name"] for group in calls.get("/apis").document["groups"]]
    assert names[0] == "apps"
    assert names[-1] == "a.example.com"
    assert groups_of(calls.get("/apis", accept=ASKED).document) == names


def test_health_tells_its_checks_and_knows_no_others(calls: Calls):
    assert calls.get("/livez").document == "ok"
    assert calls.get("/readyz", verbose="").document == "[+]ping ok\nreadyz check passed\n"
    assert calls.get("/healthz/ping").document == "ok"
    assert calls.get("/healthz/etcd").status == 404


def test_the_version_is_that_of_the_fields_that_are_known(calls: Calls):
    version = calls.get("/version").document
    assert (version["major"], version["minor"]) == ("1", "33")
    assert version["gitVersion"].startswith("v1.33.")


# openapi ------------------------------------------------------------------------------------------


def references(value: Any) -> Iterator[str]:
    for name, value_part in (as_object(value) or {}).items():
        yield from [value_part] if name == "$ref" else references(value_part)
    for value_part in as_list(value) or []:
        yield from references(value_part)


def schemas_of(calls: Calls, place: str) -> JsonObject:
    return calls.get(f"/openapi/v3/{place}").document["components"]["schemas"]


def kind_in(schemas: JsonObject, kind: str) -> JsonObject:
    gvk = "x-kubernetes-group-version-kind"
    return next(s for s in schemas.values() if s.get(gvk, [{}])[0].get("kind") == kind)


def test_every_document_describes_all_that_it_refers_to(calls: Calls):
    calls.post(CRDS, widget_definition())
    places = calls.get("/openapi/v3").document["paths"]
    assert "apis/example.com/v1" in places
    for place in places:
        document = calls.get(f"/openapi/v3/{place}").document
        schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        assert set(references(document)) <= schemas
    version_2 = calls.get("/openapi/v2").document
    assert set(references(version_2)) == {
        f"#/definitions/{name}" for name in version_2["definitions"]
    }


def test_every_builtin_type_is_in_the_field_table_but_the_definitions():
    missing = {
        rtype.kind
        for rtype in BUILTIN_TYPES
        for version in rtype.versions
        if messages.of_kind(rtype.api_version(version), rtype.kind) is None
    }
    assert missing == {"CustomResourceDefinition"}


def test_schemas_tell_types_and_how_lists_are_merged(calls: Calls):
    schemas = schemas_of(calls, "apis/apps/v1")
    spec = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert spec["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert spec["tolerations"]["x-kubernetes-list-type"] == "atomic"
    ports = schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"]
    assert ports["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    volume = schemas["io.k8s.api.core.v1.Volume"]["properties"]
    assert volume["hostPath"]["$ref"].endswith("HostPathVolumeSource")
    replicas = schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["replicas"]
    assert replicas == {"type": "integer", "format": "int32"}


def test_a_custom_resource_is_described_by_its_definition(calls: Calls):
    calls.post(CRDS, widget_definition())
    widget = kind_in(schemas_of(calls, "apis/example.com/v1"), "Widget")
    assert widget["properties"]["spec"]["properties"]["size"]["maximum"] == 10
    assert "allOf" in widget["properties"]["metadata"]
    assert calls.get("/openapi/v3/apis/none.io/v1").status == 404


def test_patches_are_reported_with_field_validation_and_the_types_of_bodies(calls: Calls):
    calls.post(CRDS, widget_definition())
    bodies: dict[str, set[str]] = {}
    for place, path in (
        ("apis/apps/v1", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"),
        ("apis/example.com/v1", "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"),
    ):
        patch = calls.get(f"/openapi/v3/{place}").document["paths"][path]["patch"]
        assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
        bodies[place] = set(patch["requestBody"]["content"])
    strategic = "application/strategic-merge-patch+json"
    assert bodies["apis/apps/v1"] - bodies["apis/example.com/v1"] == {strategic}


def test_the_address_of_a_document_changes_with_it_and_may_be_kept_for_ever(calls: Calls):
    calls.post(CRDS, widget_definition())
    before = calls.get("/openapi/v3").document["paths"]
    definition = calls.get(f"{CRDS}/widgets.example.com").document
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["more"] = {"type": "string"}
    calls.put(f"{CRDS}/widgets.example.com", definition)
    after = calls.get("/openapi/v3").document["paths"]
    changed = [name for name, entry in after.items() if before[name] != entry]
    assert changed == ["apis/example.com/v1"]
    path, _, query = after["apis/apps/v1"]["serverRelativeURL"].partition("?hash=")
    assert "immutable" in calls.get(path, hash=query).headers["Cache-Control"]
    assert "Cache-Control" not in calls.get(path, hash="old").headers


def test_version_2_is_sent_in_protobuf_to_those_who_ask_for_it(calls: Calls):
    plain = calls.get("/openapi/v2", accept="application/json").document
    reply = raw(calls, "/openapi/v2", accept=OPENAPI_V2)
    assert reply.content_type == OPENAPI_V2.replace("@", ".")
    parts = dict(read_fields(reply.body))
    assert entries(parts[DOCUMENT_PATHS]) == list(plain["paths"])
    assert entries(parts[DOCUMENT_DEFINITIONS]) == list(plain["definitions"])


def entries(message: bytes | int) -> list[str]:
    """The names of the entries of what is a map in JSON."""
    assert isinstance(message, bytes)
    fields = [
        dict(read_fields(entry)) for _, entry in read_fields(message) if isinstance(entry, bytes)
    ]
    names = [entry[1] for entry in fields]
    return [name.decode() for name in names if isinstance(name, bytes)]


def test_openapi_in_no_form_that_we_speak_is_406(calls: Calls):
    assert calls.get("/openapi/v3", accept="application/x-unknown").status == 406
    assert calls.get("/openapi/v2", accept="application/x-unknown").status == 406
