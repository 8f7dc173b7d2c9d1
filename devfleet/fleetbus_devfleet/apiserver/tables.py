"""Rows and columns as kubectl prints them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.columns import BUILTIN_COLUMNS, Row
from fleetbus_devfleet.apiserver.resource import Column

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.served import Served

JsonObject = dict[str, Any]
NAME = Column("Name", format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", json_path=".metadata.creationTimestamp", type="date")
CREATED = Column("Created At")
_STEP = re.compile(r"\.(?P<field>(?:[^.\[\\]|\\.)+)|\[(?P<index>[^\]]*)\]")


def partial_metadata(obj: JsonObject) -> JsonObject:
    """The PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def columns_of(served: Served) -> tuple[Column, ...]:
    """The columns of a type; Age only where a custom resource declares no columns."""
    if served.rtype.custom:
        return (NAME, *(served.version.columns or (AGE,)))
    found = BUILTIN_COLUMNS.get((served.rtype.store[0], served.rtype.kind))
    return (NAME, *found.columns) if found else (NAME, CREATED)


def cells(served: Served, obj: JsonObject, now: datetime) -> list[Any]:
    """The cells of an object's row."""
    name = obj["metadata"]["name"]
    if served.rtype.custom:
        columns = served.version.columns or (AGE,)
        return [name, *(_custom_cell(column, obj, now) for column in columns)]
    found = BUILTIN_COLUMNS.get((served.rtype.store[0], served.rtype.kind))
    if found is None:
        return [name, obj["metadata"].get("creationTimestamp")]
    return [name, *found.cells(Row(obj, lambda text: age(text, now)))]


def table(columns: tuple[Column, ...], rows: list[JsonObject], metadata: JsonObject) -> JsonObject:
    """A Table document."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": rows,
    }


def age(timestamp: str | None, now: datetime) -> str:
    """The time since a timestamp as kubectl writes it: 5s, 3m20s, 4h, 2d3h."""
    if not timestamp:
        return "<unknown>"
    then = datetime.fromisoformat(timestamp)
    return duration(max(0, int((now.astimezone(UTC) - then).total_seconds())))


def duration(seconds: int) -> str:
    """Seconds in at most two units, the second only while the first is small."""
    if seconds < 120:  # noqa: PLR2004 - kubectl's own thresholds, here and below
        return f"{seconds}s"
    for size, (unit, below) in _THRESHOLDS.items():
        if seconds < below:
            minor, minor_size = _MINOR[unit]
            whole, rest = divmod(seconds, size)
            if minor and whole < _TWO_UNITS_BELOW[unit] and rest // minor_size:
                return f"{whole}{unit}{rest // minor_size}{minor}"
            return f"{whole}{unit}"
    return f"{seconds // (365 * 86400)}y"


_THRESHOLDS = {60: ("m", 3 * 3600), 3600: ("h", 48 * 3600), 86400: ("d", 2 * 365 * 86400)}
_MINOR = {"m": ("s", 1), "h": ("m", 60), "d": ("h", 3600)}
_TWO_UNITS_BELOW = {"m": 10, "h": 8, "d": 8}


def _custom_cell(column: Column, obj: JsonObject, now: datetime) -> Any:
    value = json_path(obj, column.json_path)
    if value is None:
        return None
    if column.type == "date":
        return age(str(value), now)
    if column.type == "string" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def json_path(obj: JsonObject, path: str) -> Any:
    """The first value at a JSONPath of fields, indexes and `[?(@.a=="b")]` filters."""
    values: list[Any] = [obj]
    for step in _STEP.finditer(path):
        if step["field"] is not None:
            name = step["field"].replace("\\.", ".")
            values = [value[name] for value in values if isinstance(value, dict) and name in value]
        else:
            values = [item for value in values for item in _indexed(value, step["index"])]
    return values[0] if values else None


def _indexed(value: Any, index: str) -> list[Any]:
    if isinstance(value, dict):
        key = index.strip("'\"")
        return [value[key]] if key in value else []
    if not isinstance(value, list):
        return []
    if index == "*":
        return value  # pyright: ignore[reportUnknownVariableType]
    if found := re.match(r"""\?\(@\.(\w+)\s*==\s*["']([^"']*)["']\)""", index):
        field, wanted = found.groups()
        return [item for item in value if isinstance(item, dict) and item.get(field) == wanted]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if re.fullmatch(r"-?\d+", index) and -len(value) <= int(index) < len(value):  # pyright: ignore[reportUnknownArgumentType]
        return [value[int(index)]]
    return []
