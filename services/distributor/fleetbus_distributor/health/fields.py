"""Reads fields of objects that anybody may have written: what has another type is absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

Tree: TypeAlias = Mapping[str, Any]


def tree(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """The objects in a list."""
    if not isinstance(value, list):
        return []
    values = cast("list[Any]", value)
    return [cast("dict[str, Any]", item) for item in values if isinstance(item, dict)]


def number(value: Any, default: int = 0) -> int:
    """The value if it is an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def text(value: Any) -> str:
    """The value if it is a string."""
    return value if isinstance(value, str) else ""


def condition(status: Tree, kind: str) -> dict[str, Any]:
    """The condition of a type; empty if it is absent."""
    every = items(status.get("conditions"))
    absent: dict[str, Any] = {}
    return next((item for item in every if item.get("type") == kind), absent)


def is_true(status: Tree, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(status, kind).get("status") == "True"


def is_false(status: Tree, kind: str) -> bool:
    """Whether a condition is False."""
    return condition(status, kind).get("status") == "False"
