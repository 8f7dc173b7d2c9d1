"""Tells whether a schema that a member has sent is one: documents are built of it for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

_MAX_DEPTH: Final = 100
"""Levels; encoders recurse. The API servers' own schemas have about 20."""
_TEXTS: Final = ("$ref", "format", "description", "type")
_MAPS: Final = ("properties", "patternProperties", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SCHEMAS: Final = ("items", "additionalProperties", "not")


def is_schema(schema: object) -> bool:
    """Whether a value is a JSON schema as far as documents need it, and not nested too deeply."""
    left = [(schema, 0)]
    while left:
        value, depth = left.pop()
        if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
            return False
        fields = cast("Mapping[str, Any]", value)
        if not _has_valid_fields(fields):
            return False
        left += [(below, depth + 1) for below in _schemas_below(fields)]
    return True


def _has_valid_fields(schema: Mapping[str, Any]) -> bool:
    """Whether the fields that hold no schemas have the types that they must have."""
    required = schema.get("required", [])
    return (
        all(isinstance(schema.get(name, ""), str) for name in _TEXTS)
        and isinstance(required, list)
        and all(isinstance(name, str) for name in cast("list[Any]", required))
        and all(isinstance(schema.get(name, {}), dict) for name in _MAPS)
        and all(isinstance(schema.get(name, []), list) for name in _LISTS)
        and not any(_is_deep(value) for name, value in schema.items() if _is_opaque(name))
    )


def _is_opaque(name: str) -> bool:
    """Whether a field may hold any JSON: defaults, examples, extensions."""
    return name not in (*_TEXTS, *_MAPS, *_LISTS, *_SCHEMAS, "required")


def _is_deep(value: object) -> bool:
    left = [(value, 1)]
    while left:
        inner, depth = left.pop()
        if depth > _MAX_DEPTH:
            return True
        if isinstance(inner, dict):
            left += [(each, depth + 1) for each in cast("dict[str, Any]", inner).values()]
        elif isinstance(inner, list):
            left += [(each, depth + 1) for each in cast("list[Any]", inner)]
    return False


def _schemas_below(schema: Mapping[str, Any]) -> list[Any]:
    below = [each for name in _MAPS for each in schema.get(name, {}).values()]
    below += [each for name in _LISTS for each in schema.get(name, [])]
    values = [schema[name] for name in _SCHEMAS if name in schema]
    # In `additionalProperties` true and false are schemas, too.
    return below + [value for value in values if not isinstance(value, bool)]
