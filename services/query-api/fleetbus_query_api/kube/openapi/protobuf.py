"""OpenAPI version 2 in protobuf, the only form in which kubectl before 1.29 explains types by it.

The numbers are those of gnostic's OpenAPIv2.proto. Of a schema it has what explains a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

JsonObject = dict[str, Any]

ASKED: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
SENT: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The same, as a media type that is valid."""

_SWAGGER, _INFO, _DEFINITIONS = 1, 2, 9
_EXTENSION: Final = 31
_SEVEN_BITS: Final = 7


def encode_document(document: JsonObject) -> bytes:
    """Encode a document, without its paths."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    schemas: JsonObject = document["definitions"]
    return (
        _text(_SWAGGER, document["swagger"])
        + _bytes(_INFO, info)
        + _bytes(_DEFINITIONS, _named(1, schemas, _schema))
    )


def _schema(schema: Mapping[str, Any]) -> bytes:
    fields = (_FIELDS[name](value) for name, value in schema.items() if name in _FIELDS)
    extensions = {name: value for name, value in schema.items() if name.startswith("x-")}
    return b"".join(fields) + _named(_EXTENSION, extensions, _any)


def _named(number: int, values: Mapping[str, Any], encode: Callable[[Any], bytes]) -> bytes:
    """The entries of what is a map in JSON: each a name and a value."""
    return b"".join(
        _bytes(number, _text(1, name) + _bytes(2, encode(value))) for name, value in values.items()
    )


def _any(value: Any) -> bytes:
    return _bytes(2, msgspec.json.encode(value))  # as YAML, which JSON is


def _additional(value: Any) -> bytes:
    if isinstance(value, dict):
        return _bytes(21, _bytes(1, _schema(cast("JsonObject", value))))
    return _bytes(21, b"\x10" + bytes([bool(value)]))


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 1 << _SEVEN_BITS:
        data.append(value & 0x7F | 0x80)
        value >>= _SEVEN_BITS
    data.append(value)
    return bytes(data)


_FIELDS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "$ref": lambda value: _text(1, value),
    "format": lambda value: _text(2, value),
    "description": lambda value: _text(4, value),
    "required": lambda value: b"".join(_text(19, name) for name in value),
    "additionalProperties": _additional,
    "type": lambda value: _bytes(22, _text(1, value)),
    "items": lambda value: _bytes(23, _bytes(1, _schema(value))),
    "properties": lambda value: _bytes(25, _named(1, value, _schema)),
}
