"""Reads fields of untrusted objects: a value of another type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from fleetbus.kube.json_fields import condition, number

Tree: TypeAlias = Mapping[str, Any]


def is_true(status: Tree, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(status, kind).get("status") == "True"


def is_false(status: Tree, kind: str) -> bool:
    """Whether a condition is False."""
    return condition(status, kind).get("status") == "False"


def is_observed(obj: Tree) -> bool:
    """Whether the status is about the current generation of the object."""
    generation = number(obj, "metadata", "generation")
    return number(obj, "status", "observedGeneration") >= generation
