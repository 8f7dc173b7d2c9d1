"""Discovery, OpenAPI, health, and the forms in which objects come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.api.conformance_client import PARTIAL, PARTIAL_LIST, TABLE, YAML, Api
from support.api.conformance_objects import Space, deployment

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def test_a_version_lists_its_resources(api: Api, space: Space):
    reply = api.get(f"/apis/{space.group}/v1")
    assert (reply.kind, reply.body["groupVersion"]) == ("APIResourceList", f"{space.group}/v1")
    by_resource = by_name(reply.body["resources"])
    widgets = by_resource["widgets"]
    assert (widgets["kind"], widgets["singularName"], widgets["namespaced"]) == (
        "Widget",
        "widget",
        True,
    )
    assert {
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    } == set(widgets["verbs"])
    scale = by_resource["widgets/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")
    assert scale["singularName"] == ""


def test_groups_list_their_versions(api: Api, space: Space):
    group = api.get(f"/apis/{space.group}").body
    assert [v["version"] for v in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"
    assert {"apps", "batch", space.group} <= by_name(api.get("/apis").body["groups"]).keys()


def test_the_core_group_has_a_path_of_its_own(api: Api):
    assert api.get("/api").body["versions"] == ["v1"]
    reply = api.get("/api/v1")
    assert reply.body["groupVersion"] == "v1"
    by_resource = by_name(reply.body["resources"])
    assert by_resource["pods"]["shortNames"] == ["po"]
    assert {
        "pods/status",
        "pods/binding",
        "pods/eviction",
        "namespaces/finalize",
    } <= by_resource.keys()
    assert "deletecollection" in by_resource["pods"]["verbs"]
    assert "deletecollection" not in by_resource["namespaces"]["verbs"]


@pytest.mark.since("1.30")
@pytest.mark.parametrize("root", ["/api", "/apis"])
def test_all_can_be_discovered_in_one_document(api: Api, space: Space, root: str):
    reply = api.get(root, accept=AGGREGATED)
    assert reply.kind == "APIGroupDiscoveryList"
    content = reply.headers["content-type"]
    assert content == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = {item["metadata"].get("name", ""): item for item in reply.items}
    versions = groups["" if root == "/api" else space.group]["versions"]
    resources = {r["resource"]: r for r in versions[0]["resources"]}
    if root == "/api":
        assert resources["pods"]["scope"] == "Namespaced"
        return
    widgets = resources["widgets"]
    assert widgets["responseKind"] == {"group": space.group, "version": "v1", "kind": "Widget"}
    assert {s["subresource"] for s in widgets["subresources"]} == {"scale", "status"}


@pytest.mark.since("1.27")
def test_openapi_has_a_document_for_each_version(api: Api):
    paths = json.loads(api.get("/openapi/v3").text)["paths"]  # not every server calls it JSON
    assert {"api/v1", "apis/apps/v1"} <= paths.keys()
    document = api.get(paths["apis/apps/v1"]["serverRelativeURL"].partition("?")[0]).body
    kinds = [
        entry["kind"]
        for schema in document["components"]["schemas"].values()
        for entry in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert "Deployment" in kinds
    patches = [p["patch"] for p in document["paths"].values() if "patch" in p]
    parameters = {p["name"] for p in patches[0]["parameters"]}
    assert {"dryRun", "fieldManager", "fieldValidation"} <= parameters


def test_health_and_version(api: Api):
    for path in ("/healthz", "/livez", "/readyz"):
        assert (api.get(path).status, api.get(path).text) == (200, "ok")
    assert api.get("/version").body.keys() >= {"major", "minor", "gitVersion", "platform"}
    assert "/apis" in api.get("/").body["paths"]


def test_what_nobody_serves_is_plain_text(api: Api, space: Space):
    for path in (
        "/apis/nope.example.com/v1",
        space.widgets.replace("widgets", "gadgets"),
        space.widgets.replace("/v1/", "/v9/"),
    ):
        reply = api.get(path)
        assert (reply.status, reply.text) == (404, "404 page not found\n")
        assert reply.headers["content-type"].startswith("text/plain")
    missing = api.get(f"{space.widgets}/none")
    assert missing.failed == (404, "NotFound")
    assert missing.details == {"name": "none", "group": space.group, "kind": "widgets"}


# forms ------------------------------------------------------------------------------------------


@pytest.fixture
def one(api: Api, space: Space, name: str) -> str:
    """The path of a widget."""
    assert api.post(space.widgets, space.widget(name)).status == 201
    return f"{space.widgets}/{name}"


def columns(api: Api, path: str) -> list[str]:
    definitions = api.get(path, accept=TABLE).body["columnDefinitions"]
    return [column["name"] for column in definitions if not column["priority"]]


def test_a_table_has_the_columns_of_its_definition(api: Api, space: Space, name: str, one: str):
    reply = api.get(space.widgets, accept=TABLE, fieldSelector=f"metadata.name={name}")
    assert (reply.kind, reply.body["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    listed = [(c["name"], c["type"]) for c in reply.body["columnDefinitions"]]
    assert listed == [("Name", "string"), ("Size", "integer")]
    (row,) = reply.body["rows"]
    assert row["cells"] == [name, 3]
    assert (row["object"]["kind"], "spec" in row["object"]) == ("PartialObjectMetadata", False)
    assert api.get(one, accept=TABLE).body["rows"][0]["cells"] == [name, 3]


def test_a_table_shows_as_much_of_the_object_as_is_wanted(api: Api, one: str):
    for include, has_spec in (("Object", True), ("None", None)):
        (row,) = api.get(one, accept=TABLE, includeObject=include).body["rows"]
        obj = row.get("object")
        assert (obj and "spec" in obj) == has_spec


def test_built_in_types_have_columns_of_their_own(api: Api, space: Space):
    ready = ["Name", "Ready", "Up-to-date", "Available", "Age"]
    assert columns(api, space.apps("deployments")) == ready
    assert columns(api, space.core("pods")) == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert columns(api, "/api/v1/namespaces") == ["Name", "Status", "Age"]
    assert columns(api, space.core("configmaps")) == ["Name", "Data", "Age"]


def test_metadata_alone_is_to_be_had(api: Api, space: Space, one: str, name: str):
    reply = api.get(one, accept=PARTIAL)
    assert (reply.kind, reply.body["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert reply.body.keys() == {"kind", "apiVersion", "metadata"}
    many = api.get(space.widgets, accept=PARTIAL_LIST, fieldSelector=f"metadata.name={name}")
    assert many.kind == "PartialObjectMetadataList"
    assert [item["kind"] for item in many.items] == ["PartialObjectMetadata"]


@pytest.mark.parametrize(
    ("accept", "status", "content"),
    [
        ("application/json", 200, "application/json"),
        ("*/*", 200, "application/json"),
        (YAML, 200, YAML),
        ("application/vnd.kubernetes.protobuf,application/json", 200, "application/json"),
        ("text/html", 406, "application/json"),
        ("application/vnd.kubernetes.protobuf", 406, None),
    ],
)
def test_the_accept_header_chooses_the_form(
    api: Api, one: str, accept: str, status: int, content: str | None
):
    reply = api.get(one, accept=accept)
    assert reply.status == status
    assert content in {None, reply.headers["content-type"]}


def test_a_write_that_could_not_be_answered_is_not_done(api: Api, space: Space, name: str):
    assert api.post(space.widgets, space.widget(name), accept="text/html").status == 406
    assert api.get(f"{space.widgets}/{name}").status == 404


def test_a_write_answers_in_the_wanted_form(api: Api, space: Space, name: str):
    reply = api.post(space.apps("deployments"), deployment(name), accept=PARTIAL)
    assert (reply.status, reply.kind) == (201, "PartialObjectMetadata")


def test_large_answers_are_compressed(api: Api, space: Space, name: str):
    labels = {"labels": {"case": name}}
    for number in range(5):
        body = space.widget(f"{name}-{number}", labels, free={"x": "y" * 60_000})
        api.post(space.widgets, body)
    many = api.get(space.widgets, labelSelector=f"case={name}")
    assert many.headers.get("content-encoding") == "gzip"
    assert "content-encoding" not in api.get(f"{space.widgets}/none").headers
    api.delete(space.widgets, labelSelector=f"case={name}")


def test_answers_are_never_cached_and_have_an_id(api: Api, one: str):
    headers = api.get(one).headers
    assert headers["cache-control"] == "no-cache, private"
    assert len(headers["audit-id"]) == 36
