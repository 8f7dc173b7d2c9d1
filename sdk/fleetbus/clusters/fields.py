"""Reads fields of untrusted objects: a value of another type counts as absent."""

from __future__ import annotations

from typing import Any, cast

from fleetbus.kube.client import Object


def map_of(value: object) -> dict[str, Any]:
    """The value if it is a map, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def maps_of(value: object) -> list[dict[str, Any]]:
    """The entries of a list that are maps."""
    if not isinstance(value, list):
        return []
    entries = cast("list[object]", value)
    return [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]


def text_of(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def labels_of(obj: Object) -> dict[str, str]:
    """The labels of an object."""
    labels = map_of(map_of(obj.get("metadata")).get("labels"))
    return {name: value for name, value in labels.items() if isinstance(value, str)}
