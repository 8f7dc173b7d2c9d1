"""Rows and columns as kubectl prints them, and the metadata of objects alone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.columns import BUILTIN_COLUMNS, Row, ages
from fleetbus_emulator.apiserver.columns.json_path import json_path
from fleetbus_emulator.apiserver.columns.printed import NAME, Printed
from fleetbus_emulator.apiserver.types.resource import Column

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
AGE = Column("Age", json_path=".metadata.creationTimestamp", type="date")
PLAIN = Printed(
    (NAME, Column("Created At", type="date")),
    lambda row: [row.name, row.meta.get("creationTimestamp")],
)
META_GROUP = "meta.k8s.io"
# Reasons and messages of the conditions in a finished pod's row.
FINISHED = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


def partial_metadata(obj: JsonObject, version: str = "v1") -> JsonObject:
    """The PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": obj["metadata"],
    }


def columns_of(served: Served) -> tuple[Column, ...]:
    """The columns of a type; Age only where a custom resource declares no columns."""
    if served.rtype.custom:
        return (NAME, *(served.version.columns or (AGE,)))
    return _printed(served).columns


def _printed(served: Served) -> Printed:
    return BUILTIN_COLUMNS.get((served.rtype.store[0], served.rtype.kind), PLAIN)


def row_of(served: Served, obj: JsonObject, now: datetime) -> JsonObject:
    """An object's row, without the object."""
    if served.rtype.custom:
        columns = served.version.columns or (AGE,)
        cells = (_custom_cell(column, obj, now) for column in columns)
        return {"cells": [obj["metadata"]["name"], *cells]}
    printed_row = Row(obj, now)
    row: JsonObject = {"cells": _printed(served).cells(printed_row)}
    phase = printed_row.status.get("phase")
    if served.rtype.qualified == "pods" and phase in FINISHED:
        completed = {"type": "Completed", "status": "True", "reason": phase}
        row["conditions"] = [{**completed, "message": FINISHED[phase]}]
    return row


def table(
    columns: tuple[Column, ...],
    rows: list[JsonObject],
    metadata: JsonObject,
    version: str = "v1",
) -> JsonObject:
    """A Table document."""
    return {
        "kind": "Table",
        "apiVersion": f"{META_GROUP}/{version}",
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


def _custom_cell(column: Column, obj: JsonObject, now: datetime) -> Any:
    """A cell of a custom resource; nothing where the value is not of the column's type."""
    value = json_path(obj, column.json_path)
    if value is None:
        return None
    match column.type:
        case "string":
            return value if isinstance(value, str) else orjson.dumps(value).decode()
        case "date":
            return ages.age(value, now) if isinstance(value, str) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "integer":
            return int(value) if _is_number(value) else None
        case _:
            return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
