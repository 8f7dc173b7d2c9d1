"""Reading what may not be there, or not be what it should: for code that must never fail."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.json_tree import as_object, listing, mapping

JsonObject = dict[str, Any]


def objects_at(obj: Any, *path: str) -> list[JsonObject]:
    """The objects in the list at a path; what is none is left out."""
    objects = (as_object(item) for item in listing(obj, *path))
    return [item for item in objects if item is not None]


def texts_at(obj: Any, *path: str) -> dict[str, str]:
    """The strings of the object at a path, such as labels; other values are left out."""
    fields = mapping(obj, *path)
    return {name: value for name, value in fields.items() if isinstance(value, str)}
