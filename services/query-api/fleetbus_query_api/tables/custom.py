"""The columns of custom resources: `additionalPrinterColumns` of their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from fleetbus.kube.json_fields import Tree
from fleetbus.kube.jsonpath import InvalidJsonPath, JsonPath, render_value
from fleetbus.process.human_time import parse_time
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.tables.column import INVALID, NAME, UNKNOWN, Cell, Column, since

_KNOWN_DEFINITIONS: Final = 1_000
_LONGEST_CELL: Final = 4_096
"""Characters; a column may select a whole object."""


@lru_cache(_KNOWN_DEFINITIONS)
def custom_columns(declared: tuple[PrinterColumn, ...]) -> Sequence[Column]:
    """The columns of a definition, after the name."""
    return (NAME, *map(_column, declared))


def _column(declared: PrinterColumn) -> Column:
    return Column(
        declared.name,
        _cell(declared),
        type=declared.type,
        format=declared.format,
        priority=max(declared.priority, 0),
    )


def _cell(declared: PrinterColumn) -> Callable[[Tree], Cell]:
    """A cell with the first value at a path; empty if it is not of the column's type."""
    try:
        path = JsonPath.parse(declared.json_path)
    except InvalidJsonPath:
        return lambda _: None
    convert = _CONVERSIONS.get(declared.type, _no_value)

    def cell(tree: Tree) -> Cell:
        try:
            found = path.find(tree)
        except InvalidJsonPath:
            return None
        return convert(found[0]) if found else None

    return cell


def _no_value(_: object) -> Cell:
    return None


def _string(value: object) -> Cell:
    return None if value is None else render_value(value)[:_LONGEST_CELL]


def _integer(value: object) -> Cell:
    number = _number(value)
    try:
        return None if number is None else int(number)
    except (OverflowError, ValueError):  # infinity
        return None


def _number(value: object) -> int | float | None:
    if isinstance(value, bool):
        return None
    return value if isinstance(value, int | float) else None


def _boolean(value: object) -> Cell:
    return value if isinstance(value, bool) else None


def _date(value: object) -> Cell:
    if not isinstance(value, str):
        return None
    if not value:
        return UNKNOWN
    return INVALID if parse_time(value) is None else since(value)


_CONVERSIONS: Final[dict[str, Callable[[object], Cell]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
}
