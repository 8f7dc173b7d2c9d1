"""Reads fields of an untrusted JSON tree; a missing field or one of another type is empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

Tree = dict[str, Any]
MOST_READ: Final = 5_000
"""Elements of a list inside an object that are read; Kubernetes allows no list nearly as long."""


def look(tree: object, *path: str) -> Any:
    """Return the value at a path; None if there is none."""
    here = tree
    for step in path:
        if not isinstance(here, dict):
            return None
        here = cast("Tree", here).get(step)
    return here


def text(tree: object, *path: str) -> str:
    """Return the value at a path, whatever its type, as a string; empty if there is none."""
    value = look(tree, *path)
    return "" if value is None else str(value)


def string(tree: object, *path: str) -> str:
    """Return the string at a path; empty if there is none, or something else."""
    value = look(tree, *path)
    return value if isinstance(value, str) else ""


def number(tree: object, *path: str, default: int = 0) -> int:
    """Return the integer at a path; the default if there is none."""
    value = look(tree, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def mapping(tree: object, *path: str) -> Tree:
    """Return the mapping at a path; an empty one if there is none."""
    value = look(tree, *path)
    return cast("Tree", value) if isinstance(value, dict) else {}


def many(tree: object, *path: str) -> Sequence[Tree]:
    """Return the mappings in the list at a path."""
    value = look(tree, *path)
    if not isinstance(value, list):
        return ()
    return [cast("Tree", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def first_maps(tree: object, *path: str) -> Sequence[Tree]:
    """Return the mappings among the first `MOST_READ` elements of the list at a path.

    For lists inside an object of a member: it may have half a million elements, and whoever reads
    it several times on an event loop would stall everybody.
    """
    value = look(tree, *path)
    if not isinstance(value, list):
        return ()
    elements = cast("list[object]", value)[:MOST_READ]
    return [cast("Tree", item) for item in elements if isinstance(item, dict)]


def labels(obj: object) -> dict[str, str]:
    """Return the labels of an object."""
    every = mapping(obj, "metadata", "labels")
    return {name: value for name, value in every.items() if isinstance(value, str)}


def pairs(tree: object, *path: str) -> str:
    """Render a mapping such as labels as `a=b,c=d`."""
    return ",".join(f"{name}={value}" for name, value in sorted(mapping(tree, *path).items()))


def condition(status: object, kind: str) -> Tree:
    """Return the first condition of a type from a status; empty if there is none."""
    absent: Tree = {}
    return next((c for c in first_maps(status, "conditions") if c.get("type") == kind), absent)
