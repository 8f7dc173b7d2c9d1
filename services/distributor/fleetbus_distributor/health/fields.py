"""Whether conditions of untrusted objects hold: a value of another type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from fleetbus.kube.json_fields import condition

Tree: TypeAlias = Mapping[str, Any]


def is_true(status: Tree, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(status, kind).get("status") == "True"


def is_false(status: Tree, kind: str) -> bool:
    """Whether a condition is False."""
    return condition(status, kind).get("status") == "False"
