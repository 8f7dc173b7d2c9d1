"""The paths of OpenAPI documents: those that create, replace and patch.

kubectl looks there for the query parameters that a server knows (fieldValidation, dryRun) and for
the kinds of patches that a type takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.http.exchange import JSON, YAML
from fleetbus_emulator.apiserver.openapi.schemas import GVK
from fleetbus_emulator.apiserver.write import patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")


def version_3(entry: Served, schema: JsonObject) -> JsonObject:
    """The paths of a type in version 3."""

    def operation(action: str, bodies: tuple[str, ...]) -> JsonObject:
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in PARAMETERS
        ]
        answered = {"content": {JSON: {"schema": schema}}}
        return _head(entry, action) | {
            "parameters": parameters,
            "requestBody": {"content": {media: {"schema": schema} for media in bodies}},
            "responses": {"200": {"description": "OK", **answered}},
        }

    return _paths(entry, operation)


def version_2(entry: Served, schema: JsonObject) -> JsonObject:
    """The paths of a type in version 2."""

    def operation(action: str, bodies: tuple[str, ...]) -> JsonObject:
        parameters: list[JsonObject] = [
            {"name": name, "in": "query", "type": "string", "uniqueItems": True}
            for name in PARAMETERS
        ]
        body = {"name": "body", "in": "body", "required": True, "schema": schema}
        return _head(entry, action) | {
            "consumes": list(bodies),
            "parameters": [body, *parameters],
            "responses": {"200": {"description": "OK", "schema": schema}},
        }

    return _paths(entry, operation)


def _paths(entry: Served, operation: Callable[[str, tuple[str, ...]], JsonObject]) -> JsonObject:
    rtype = entry.rtype
    base = f"/apis/{rtype.group}" if rtype.group else "/api"
    place = "/namespaces/{namespace}" if rtype.namespaced else ""
    path = f"{base}/{entry.version.name}{place}/{rtype.plural}"
    return {
        path: {"post": operation("post", (JSON, YAML))},
        path + "/{name}": {
            "put": operation("put", (JSON, YAML)),
            "patch": operation("patch", patches.accepted(custom=rtype.custom)),
        },
    }


def _head(entry: Served, action: str) -> JsonObject:
    gvk = {"group": entry.rtype.group, "version": entry.version.name, "kind": entry.rtype.kind}
    return {
        "operationId": f"{action}{entry.rtype.kind}",
        "x-kubernetes-action": action,
        GVK: gvk,
    }
