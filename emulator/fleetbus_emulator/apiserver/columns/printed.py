"""A type's columns and the row of an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fleetbus_emulator.apiserver.columns import ages
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.resource import Column

JsonObject = dict[str, Any]
NONE, UNSET = "<none>", "<unset>"
SETS = {"In": "in", "NotIn": "notin"}
NAME = Column("Name", format="name", description="Name must be unique within a namespace.")


@dataclass(slots=True, eq=False)
class Row:
    """An object whose row is being printed.

    Attributes:
        spec, status: Perhaps empty.
    """

    obj: JsonObject
    now: datetime
    meta: JsonObject = field(init=False)
    spec: JsonObject = field(init=False)
    status: JsonObject = field(init=False)

    def __post_init__(self) -> None:
        self.meta = self.obj["metadata"]
        self.spec = mapping(self.obj, "spec")
        self.status = mapping(self.obj, "status")

    @property
    def name(self) -> str:
        """The name."""
        return self.meta["name"]

    @property
    def deleting(self) -> bool:
        """Whether its deletion has begun."""
        return "deletionTimestamp" in self.meta

    @property
    def age(self) -> str:
        """The time since creation."""
        return self.since(self.meta.get("creationTimestamp"))

    def since(self, timestamp: str | None) -> str:
        """The time since a timestamp."""
        return ages.age(timestamp, self.now)


@dataclass(frozen=True, slots=True)
class Printed:
    """The columns of a type, and how the cells of a row are computed."""

    columns: tuple[Column, ...]
    cells: Callable[[Row], list[Any]]


def printed(
    names: str,
    cells: Callable[[Row], list[Any]],
    *,
    wide: str = "",
    integers: str = "",
    booleans: str = "",
) -> Printed:
    """The columns behind Name.

    Args:
        names: The columns, separated by commas.
        cells: Computes the cells behind the name, those of wide columns too.
        wide: The columns that only `-o wide` shows.
        integers: Those of the columns that hold numbers.
        booleans: Those of the columns that hold truth values.
    """
    types = dict.fromkeys(integers.split(", "), "integer")
    types |= dict.fromkeys(booleans.split(", "), "boolean")

    def column(name: str, priority: int) -> Column:
        return Column(name, type=types.get(name, "string"), priority=priority)

    visible = [column(name, 0) for name in names.split(", ")]
    hidden = [column(name, 1) for name in wide.split(", ") if name]
    return Printed((NAME, *visible, *hidden), lambda row: [row.name, *cells(row)])


def labels(pairs: JsonObject) -> str:
    """Labels as kubectl lists them."""
    return ",".join(f"{name}={value}" for name, value in sorted(pairs.items())) or NONE


def selector(label_selector: JsonObject) -> str:
    """A label selector as text: `app=web,tier in (a,b),!old`."""
    parts = {
        name: f"{name}={value}" for name, value in mapping(label_selector, "matchLabels").items()
    }
    for expression in listing(label_selector, "matchExpressions"):
        key, operator = str(expression.get("key", "")), expression.get("operator")
        values = ",".join(sorted(listing(expression, "values")))
        if operator in SETS:
            parts[key] = f"{key} {SETS[operator]} ({values})"
        else:
            parts[key] = key if operator == "Exists" else f"!{key}"
    return ",".join(text for _, text in sorted(parts.items())) or NONE


def some(items: list[str], most: int = 3) -> str:
    """The first of many."""
    first = ",".join(items[:most])
    return f"{first} + {len(items) - most} more..." if len(items) > most else first
