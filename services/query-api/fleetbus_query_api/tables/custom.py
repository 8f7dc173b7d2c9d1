"""The columns of custom resources: `additionalPrinterColumns` of their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fleetbus.kube.json_fields import Tree
from fleetbus.kube.json_values import render_start
from fleetbus.kube.jsonpath import JsonPath
from fleetbus.kube.path_budget import InvalidJsonPath, PathBudget, PathTooCostly
from fleetbus.process.human_time import parse_time
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.tables.column import (
    INVALID,
    LONGEST_CELL,
    NAME,
    TOO_COSTLY,
    UNKNOWN,
    Cell,
    Column,
    since,
)

_KNOWN_DEFINITIONS: Final = 1_000


@lru_cache(_KNOWN_DEFINITIONS)
def custom_columns(declared: tuple[PrinterColumn, ...]) -> Sequence[Column]:
    """The columns of a definition, after the name."""
    return (NAME, *map(_column, declared))


@dataclass(frozen=True, slots=True)
class _PathColumn(Column):
    """A column with the first value at a path; empty if it is not of the column's type."""

    path: JsonPath | None = None

    def render(self, tree: Tree, budget: PathBudget) -> Cell:
        """The cell of an object."""
        if self.path is None:
            return None
        try:
            values = self.path.find(tree, budget)
            return _CONVERSIONS.get(self.type, _no_value)(values[0], budget) if values else None
        except PathTooCostly:
            return TOO_COSTLY
        except InvalidJsonPath:
            return None


def _column(declared: PrinterColumn) -> Column:
    try:
        path = JsonPath.parse(declared.json_path)
    except InvalidJsonPath:
        path = None
    return _PathColumn(
        declared.name,
        type=declared.type,
        format=declared.format,
        priority=max(declared.priority, 0),
        path=path,
    )


def _no_value(_: object, __: PathBudget) -> Cell:
    return None


def _string(value: object, budget: PathBudget) -> Cell:
    return None if value is None else render_start(value, LONGEST_CELL, budget)


def _integer(value: object, budget: PathBudget) -> Cell:
    number = _number(value, budget)
    try:
        return None if number is None else int(number)
    except (OverflowError, ValueError):  # infinity
        return None


def _number(value: object, _: PathBudget) -> int | float | None:
    if isinstance(value, bool):
        return None
    return value if isinstance(value, int | float) else None


def _boolean(value: object, _: PathBudget) -> Cell:
    return value if isinstance(value, bool) else None


def _date(value: object, _: PathBudget) -> Cell:
    if not isinstance(value, str):
        return None
    if not value:
        return UNKNOWN
    return INVALID if parse_time(value) is None else since(value)


_CONVERSIONS: Final[dict[str, Callable[[object, PathBudget], Cell]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
}
