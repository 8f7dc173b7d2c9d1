"""Reads conditions and numbers of untrusted objects: a value of another type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from fleetbus.kube.json_fields import many

Tree: TypeAlias = Mapping[str, Any]


def number(value: Any, default: int = 0) -> int:
    """The value if it is an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def condition(status: Tree, kind: str) -> dict[str, Any]:
    """The condition of a type; empty if it is absent."""
    every = many(status, "conditions")
    absent: dict[str, Any] = {}
    return next((item for item in every if item.get("type") == kind), absent)


def is_true(status: Tree, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(status, kind).get("status") == "True"


def is_false(status: Tree, kind: str) -> bool:
    """Whether a condition is False."""
    return condition(status, kind).get("status") == "False"
