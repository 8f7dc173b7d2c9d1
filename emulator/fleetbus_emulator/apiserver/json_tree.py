"""Reading JSON trees whose parts may be absent, null or of an unexpected type."""

from __future__ import annotations

from typing import Any, cast

import orjson

JsonObject = dict[str, Any]


def as_object(value: Any) -> JsonObject | None:
    """The value if it is an object."""
    return cast("JsonObject", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any] | None:
    """The value if it is a list."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def value_at(obj: Any, *path: str) -> Any:
    """The value at a path of fields; None if there is none."""
    for step in path:
        fields = as_object(obj)
        if fields is None:
            return None
        obj = fields.get(step)
    return obj


def mapping(obj: Any, *path: str) -> JsonObject:
    """The object at a path; a new empty one if there is none."""
    return as_object(value_at(obj, *path)) or {}


def listing(obj: Any, *path: str) -> list[Any]:
    """The list at a path; a new empty one if there is none."""
    return as_list(value_at(obj, *path)) or []


def same(first: Any, other: Any) -> bool:
    """Whether two values are the same JSON; to Python 1, 1.0 and true are equal."""
    if first != other:
        return False
    texts = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in (first, other))
    return next(texts) == next(texts)
