"""OpenAPI v3, as much as kubectl needs to validate, apply and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.errors import NotServed
from fleetbus_devfleet.apiserver.exchange import Response, json_response
from fleetbus_devfleet.apiserver.tree import mapping

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.served import Served, ServedTypes

JsonObject = dict[str, Any]
ROOT = "/openapi/v3"
PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
GVK = "x-kubernetes-group-version-kind"


def answer(path: str, served: ServedTypes) -> Response:
    """Answer the root and the documents below it.

    Raises:
        NotServed: There is no such document.
    """
    place = path.removeprefix(ROOT).strip("/")
    if not place:
        names = ["api/v1", *(f"apis/{g}/{v}" for g, vs in served.groups().items() for v in vs)]
        paths = {name: {"serverRelativeURL": f"{ROOT}/{name}"} for name in names}
        return json_response(200, {"paths": paths})
    prefix, _, rest = place.partition("/")
    group, _, version = rest.rpartition("/") if prefix == "apis" else ("", "", rest)
    entries = served.in_version(group, version)
    if prefix not in ("api", "apis") or not entries:
        raise NotServed
    return json_response(200, _document(entries))


def _document(entries: list[Served]) -> JsonObject:
    paths: JsonObject = {}
    schemas: JsonObject = {}
    for entry in entries:
        paths |= _paths(entry)
        schemas[_schema_name(entry)] = _schema(entry)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.31.4"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(entry: Served) -> JsonObject:
    return {
        "group": entry.rtype.group,
        "version": entry.version.name,
        "kind": entry.rtype.kind,
    }


def _schema_name(entry: Served) -> str:
    group = ".".join(reversed(entry.rtype.group.split("."))) or "io.k8s.api.core"
    return f"{group}.{entry.version.name}.{entry.rtype.kind}"


def _schema(entry: Served) -> JsonObject:
    source: JsonObject = {"type": "object"}
    if entry.version.schema is not None:
        source = entry.version.schema.source
    head: JsonObject = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    properties = {**head, **(mapping(source, "properties"))}
    return {**source, "properties": properties, GVK: [_gvk(entry)]}


def _paths(entry: Served) -> JsonObject:
    rtype = entry.rtype
    base = f"/apis/{rtype.group}" if rtype.group else "/api"
    place = "/namespaces/{namespace}" if rtype.namespaced else ""
    path = f"{base}/{entry.version.name}{place}/{rtype.plural}"
    schema = {"$ref": f"#/components/schemas/{_schema_name(entry)}"}
    body = {"content": {"application/json": {"schema": schema}}}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in PARAMETERS
    ]

    def operation(action: str) -> JsonObject:
        return {
            "operationId": f"{action}{rtype.kind}",
            "parameters": parameters,
            "requestBody": body,
            "responses": {"200": {"description": "OK", **body}},
            "x-kubernetes-action": action,
            GVK: _gvk(entry),
        }

    return {
        path: {"post": operation("post")},
        path + "/{name}": {"patch": operation("patch"), "put": operation("put")},
    }
