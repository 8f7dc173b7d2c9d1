"""Cells that several resources have: counts, labels, selectors, containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from fleetbus.kube.json_fields import (
    MOST_READ,
    Tree,
    first_maps,
    look,
    mapping,
    number,
    pairs,
    text,
)
from fleetbus_query_api.tables.column import NONE, Cell, Column, column, wide

_SETS: Final = {"In": "in", "NotIn": "notin"}
_PRESENCE: Final = ("Exists", "DoesNotExist")
SHOWN: Final = 3
"""Items of a list that a cell names."""


def at(*path: str, default: str = "") -> Callable[[Tree], str]:
    """A cell with the value at a path; the default where there is none, not where it is empty."""

    def cell(tree: Tree) -> str:
        value = look(tree, *path)
        return default if value is None else str(value)

    return cell


def filled(*path: str, default: str) -> Callable[[Tree], str]:
    """A cell with the value at a path; the default where it is empty, too."""
    return lambda tree: text(tree, *path) or default


def count(*path: str) -> Callable[[Tree], int]:
    """A cell with the number at a path; 0 if there is none."""
    return lambda tree: number(tree, *path)


def size(*path: str) -> Callable[[Tree], int]:
    """A cell with the number of entries at a path."""
    return lambda tree: length(look(tree, *path))


def truth(*path: str, default: bool = False) -> Callable[[Tree], Cell]:
    """A cell with the truth value at a path."""

    def cell(tree: Tree) -> Cell:
        value = look(tree, *path)
        return value if isinstance(value, bool) else default

    return cell


def labels(*path: str) -> Callable[[Tree], str]:
    """A cell with the labels at a path."""
    return lambda tree: pairs(tree, *path) or NONE


def length(value: object) -> int:
    """Count the entries of a list or an object; 0 for anything else."""
    return len(cast("list[object]", value)) if isinstance(value, list | dict) else 0


def strings(tree: object, *path: str) -> list[str]:
    """The strings among the first elements of the list at a path, as `first_maps`."""
    elements = look(tree, *path)
    first = cast("list[object]", elements)[:MOST_READ] if isinstance(elements, list) else []
    return [element for element in first if isinstance(element, str)]


def some(items: Sequence[str], total: int | None = None) -> str:
    """Join the first of many, and say how many more there are.

    Args:
        items: those that are shown, or more.
        total: how many there are; by default as many as items.
    """
    total = len(items) if total is None else total
    first = ",".join(items[:SHOWN])
    return f"{first} + {total - SHOWN} more..." if total > SHOWN else first


def is_true(tree: object, *path: str, kind: str) -> bool:
    """Whether the first condition of a type, in the list at a path, is true."""
    conditions = (c for c in first_maps(tree, *path) if c.get("type") == kind)
    return next((c.get("status") == "True" for c in conditions), False)


def selector(*path: str, none: str = NONE, invalid: str = "<error>") -> Callable[[Tree], str]:
    """A cell with the label selector at a path: `app=web,tier in (a,b),!old`."""

    def cell(tree: Tree) -> str:
        value = look(tree, *path)
        expressions = first_maps(value, "matchExpressions")
        return (render_selector(value) or none) if all(map(_is_valid, expressions)) else invalid

    return cell


def _is_valid(expression: Tree) -> bool:
    operator, values = text(expression, "operator"), strings(expression, "values")
    if not text(expression, "key"):
        return False
    return bool(values) if operator in _SETS else operator in _PRESENCE and not values


def render_selector(label_selector: object) -> str:
    """Render a label selector as API servers do, sorted by label."""
    parts: list[tuple[str, str]] = []
    equal = mapping(label_selector, "matchLabels")
    parts += [(name, f"{name}={value}") for name, value in equal.items()]
    for expression in first_maps(label_selector, "matchExpressions"):
        name, operator = text(expression, "key"), text(expression, "operator")
        if operator in _SETS:
            values = ",".join(sorted(strings(expression, "values")))
            parts.append((name, f"{name} {_SETS[operator]} ({values})"))
        else:
            parts.append((name, name if operator == "Exists" else f"!{name}"))
    return ",".join(rendered for _, rendered in sorted(parts, key=lambda pair: pair[0]))


def template_columns(*path: str, by_default: bool = False) -> Sequence[Column]:
    """The columns with the names and images of the containers at a path."""

    def joined(field: str) -> Callable[[Tree], str]:
        return lambda tree: ",".join(
            text(container, field) for container in first_maps(tree, *path)
        )

    make = column if by_default else wide
    return (make("Containers", joined("name")), make("Images", joined("image")))


TEMPLATE: Final = template_columns("spec", "template", "spec", "containers")
"""Template of the Pods of a workload."""
