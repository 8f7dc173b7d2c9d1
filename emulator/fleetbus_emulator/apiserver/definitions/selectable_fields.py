"""Selectable fields: which fields of a custom resource field selectors may name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import duplicate, invalid, required

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
LIMIT = 8
TYPES = ("string", "boolean", "integer")
_TYPE_WANTED = (
    f"must point to a field of type {', '.join(TYPES[:-1])} or {TYPES[-1]}. Enum string fields and "
    "strings with formats are allowed."
)


def selectable_fields(version: JsonObject) -> tuple[str, ...]:
    """The paths of a version of a definition, as field selectors write them: `spec.color`."""
    return tuple(
        str(field["jsonPath"]).removeprefix(".") for field in listing(version, "selectableFields")
    )


def selectable_problems(versions: list[JsonObject]) -> list[Cause]:
    """Validate the selectable fields of the versions of a definition.

    What all versions have in common is reported once, above them.
    """
    parts = [version.get("selectableFields") for version in versions]
    if parts and all(fields == parts[0] for fields in parts):
        return list(_problems_of(versions[0], "spec.selectableFields"))
    return [
        cause
        for index, version in enumerate(versions)
        for cause in _problems_of(version, f"spec.versions[{index}].selectableFields")
    ]


def _problems_of(version: JsonObject, place: str) -> Iterator[Cause]:
    fields = listing(version, "selectableFields")
    schema = mapping(version, "schema", "openAPIV3Schema")
    paths: set[str] = set()
    for index, field in enumerate(fields):
        path, here = str(field.get("jsonPath") or ""), f"{place}[{index}].jsonPath"
        if not path:
            yield required(here)
        elif why := _path_problem(path, schema):
            yield invalid(here, path, why)
        elif path in paths:
            yield duplicate(here, path)
        paths.add(path)
    if len(paths) > LIMIT:
        why = f"Too many: {len(fields)}: must have at most {LIMIT} items"
        yield Cause(place, why, "FieldValueTooMany")


def _path_problem(path: str, schema: JsonObject) -> str:
    if not path.startswith("."):
        return f"is an invalid path: expected [ or . but got: {re.split(r'[.[]', path)[0]}"
    if "[" in path:
        return "is an invalid path: array notation is not allowed"
    node = schema
    first, *_ = steps = path[1:].split(".")
    for step in steps:
        if step not in mapping(node, "properties") or first == "metadata":
            return "is an invalid path: does not refer to a valid field"
        node = mapping(node, "properties", step)
    return "" if node.get("type") in TYPES else _TYPE_WANTED
