"""OpenAPI version 2 in protobuf (gnostic's openapiv2.Document), as much as kubectl reads.

The numbers are those of OpenAPIv2.proto. Bounds of values are left out: nobody checks by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from fleetbus_emulator.apiserver.encoding.protobuf_wire import write_field

JsonObject = dict[str, Any]
Encoder = Callable[[int, Any], bytes]
# Field numbers of the messages Document, Paths, PathItem, Operation and of what they consist of.
DOCUMENT_SWAGGER, DOCUMENT_INFO, DOCUMENT_PATHS, DOCUMENT_DEFINITIONS = 1, 2, 8, 9
PATHS_PATH, DEFINITIONS_SCHEMA = 2, 1
VERBS = {"put": 3, "post": 4, "patch": 8}
OPERATION_ID, OPERATION_CONSUMES, OPERATION_PARAMETERS = 5, 7, 8
OPERATION_RESPONSES, OPERATION_EXTENSION = 9, 13
SCHEMA_EXTENSION = 31


def encode(document: JsonObject) -> bytes:
    """The document in protobuf."""
    info = write_field(1, document["info"]["title"]) + write_field(2, document["info"]["version"])
    paths = _named_all(PATHS_PATH, document["paths"], _path)
    definitions = _named_all(DEFINITIONS_SCHEMA, document["definitions"], _schema)
    return (
        write_field(DOCUMENT_SWAGGER, document["swagger"])
        + write_field(DOCUMENT_INFO, info)
        + write_field(DOCUMENT_PATHS, paths)
        + write_field(DOCUMENT_DEFINITIONS, definitions)
    )


def _named(number: int, name: str, value: bytes) -> bytes:
    """An entry of what is a map in JSON: its name and its value."""
    return write_field(number, write_field(1, name) + write_field(2, value))


def _named_all(number: int, entries: JsonObject, encoder: Callable[[JsonObject], bytes]) -> bytes:
    return b"".join(_named(number, name, encoder(value)) for name, value in entries.items())


def _any(value: Any) -> bytes:
    return write_field(2, orjson.dumps(value))  # as YAML, which JSON is


def _extensions(number: int, values: JsonObject) -> bytes:
    extensions = ((name, value) for name, value in values.items() if name.startswith("x-"))
    return b"".join(_named(number, name, _any(value)) for name, value in extensions)


# paths ------------------------------------------------------------------------------------------


def _path(item: JsonObject) -> bytes:
    return b"".join(write_field(VERBS[verb], _operation(op)) for verb, op in item.items())


def _operation(operation: JsonObject) -> bytes:
    parameters = (_parameter(parameter) for parameter in operation["parameters"])
    responses = _named_all(1, operation["responses"], _response)
    return (
        write_field(OPERATION_ID, operation["operationId"])
        + b"".join(write_field(OPERATION_CONSUMES, media) for media in operation["consumes"])
        + b"".join(write_field(OPERATION_PARAMETERS, parameter) for parameter in parameters)
        + write_field(OPERATION_RESPONSES, responses)
        + _extensions(OPERATION_EXTENSION, operation)
    )


def _parameter(parameter: JsonObject) -> bytes:
    if parameter["in"] == "body":
        body = write_field(2, "body") + write_field(3, "body") + write_field(4, 1)
        encoded = write_field(1, body + write_field(5, _schema(parameter["schema"])))
    else:
        query = write_field(2, "query") + write_field(4, parameter["name"])
        query += write_field(6, parameter["type"]) + write_field(20, 1)
        encoded = write_field(2, write_field(3, query))
    return write_field(1, encoded)


def _response(response: JsonObject) -> bytes:
    schema = write_field(1, _schema(response["schema"]))
    return write_field(1, write_field(1, response["description"]) + write_field(2, schema))


# schemas ----------------------------------------------------------------------------------------


def _schema(schema: JsonObject) -> bytes:
    keywords = ((name, value) for name, value in schema.items() if name in _SCHEMA)
    encoded = b"".join(_SCHEMA[name][1](_SCHEMA[name][0], value) for name, value in keywords)
    return encoded + _extensions(SCHEMA_EXTENSION, schema)


def _one(number: int, schema: JsonObject) -> bytes:
    return write_field(number, write_field(1, _schema(schema)))


def _additional(number: int, schema: JsonObject | bool) -> bytes:
    if isinstance(schema, bool):
        return write_field(number, write_field(2, int(schema)))
    return _one(number, schema)


def _texts(number: int, values: list[str]) -> bytes:
    return b"".join(write_field(number, value) for value in values)


def _values(number: int, values: list[Any]) -> bytes:
    return b"".join(write_field(number, _any(value)) for value in values)


def _default(number: int, value: Any) -> bytes:
    return write_field(number, _any(value))


def _type(number: int, value: str) -> bytes:
    return write_field(number, write_field(1, value))


def _properties(number: int, properties: JsonObject) -> bytes:
    return write_field(number, _named_all(1, properties, _schema))


_SCHEMA: dict[str, tuple[int, Encoder]] = {
    "$ref": (1, write_field),
    "format": (2, write_field),
    "title": (3, write_field),
    "description": (4, write_field),
    "default": (5, _default),
    "required": (19, _texts),
    "enum": (20, _values),
    "additionalProperties": (21, _additional),
    "type": (22, _type),
    "items": (23, _one),
    "properties": (25, _properties),
}
