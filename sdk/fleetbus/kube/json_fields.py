"""Reads fields of a JSON tree; a missing field or one of another type reads as empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

Tree = dict[str, Any]


def look(tree: object, *path: str) -> Any:
    """Return the value at a path; None if there is none."""
    here = tree
    for part in path:
        if not isinstance(here, dict):
            return None
        here = cast("Tree", here).get(part)
    return here


def text(tree: object, *path: str) -> str:
    """Return the value at a path as a string; empty if there is none."""
    found = look(tree, *path)
    return "" if found is None else str(found)


def number(tree: object, *path: str) -> int:
    """Return the integer at a path; 0 if there is none."""
    found = look(tree, *path)
    return found if isinstance(found, int) else 0


def mapping(tree: object, *path: str) -> Tree:
    """Return the mapping at a path; an empty one if there is none."""
    found = look(tree, *path)
    return cast("Tree", found) if isinstance(found, dict) else {}


def many(tree: object, *path: str) -> Sequence[Tree]:
    """Return the mappings in the list at a path."""
    found = look(tree, *path)
    if not isinstance(found, list):
        return ()
    return [cast("Tree", item) for item in cast("list[object]", found) if isinstance(item, dict)]


def pairs(tree: object, *path: str) -> str:
    """Render a mapping such as labels as `a=b,c=d`."""
    return ",".join(f"{name}={value}" for name, value in sorted(mapping(tree, *path).items()))


def condition(tree: object, kind: str) -> Tree:
    """Return the condition of a type from an object's status; empty if there is none."""
    found = [c for c in many(tree, "status", "conditions") if c.get("type") == kind]
    return found[0] if found else {}
