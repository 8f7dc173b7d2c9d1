"""Tells whether a schema that a member has sent is one: documents are built of it for everybody."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from fleetbus_query_api.fields.tree_size import count_values

_MAX_DEPTH: Final = 100
"""Levels; encoders recurse. The API servers' own schemas have about 20."""
MAX_VALUES: Final = 50_000
"""Values of a schema; the largest that operators install have 20,000."""
_TEXTS: Final = frozenset({"$ref", "format", "description", "type"})
_MAPS: Final = frozenset({"properties", "patternProperties", "definitions"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_SCHEMAS: Final = frozenset({"items", "additionalProperties", "not"})


def is_schema(schema: object) -> bool:
    """Whether a value is a JSON schema as far as documents need it, neither too deep nor large."""
    if count_values(schema, most=MAX_VALUES) > MAX_VALUES:
        return False
    left = [(schema, 0)]
    while left:
        value, depth = left.pop()
        if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
            return False
        for name, field in cast("Mapping[str, Any]", value).items():
            if not _is_valid(name, field):
                return False
            left += [(below, depth + 1) for below in _schemas_in(name, field)]
    return True


def _is_valid(name: str, field: Any) -> bool:
    """Whether a field of a schema has the type that it must have; not what is below it."""
    if name in _TEXTS:
        return isinstance(field, str)
    if name in _MAPS:
        return isinstance(field, dict)
    if name in _LISTS:
        return isinstance(field, list)
    if name == "required":
        names = cast("list[Any]", field) if isinstance(field, list) else [None]
        return all(isinstance(each, str) for each in names)
    # Anything else may be any JSON: defaults, examples, extensions.
    return name in _SCHEMAS or not _is_deep(field)


def _schemas_in(name: str, field: Any) -> Collection[Any]:
    """The schemas that a valid field of a schema has."""
    if name in _MAPS:
        return cast("dict[str, Any]", field).values()
    if name in _LISTS:
        return cast("list[Any]", field)
    # In `additionalProperties` true and false are schemas, too.
    return (field,) if name in _SCHEMAS and not isinstance(field, bool) else ()


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
