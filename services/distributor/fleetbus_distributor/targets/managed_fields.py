"""Detects from managedFields that an apply would change nothing (rule D3).

An apply is skipped when the live object has our fields with our values. Which fields are ours is
read from managedFields, so a field that another manager added never looks like drift, and a field
that was removed from the template is noticed although all values fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias, cast

Tree: TypeAlias = dict[str, Any]

_IDENTITY: Final = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})
_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
}


def is_applied(wanted: Mapping[str, Any], live: Mapping[str, Any], manager: str) -> bool:
    """Whether applying `wanted` as `manager` would change nothing on `live`."""
    owned = _applied_fields(live, manager, str(wanted["apiVersion"]))
    if owned is None:
        return False
    configuration = {key: value for key, value in wanted.items() if key not in _IDENTITY}
    metadata = cast("Tree", configuration["metadata"])
    configuration["metadata"] = {k: v for k, v in metadata.items() if k not in _UNOWNED_METADATA}
    return _same(owned, configuration, live)


def _applied_fields(live: Mapping[str, Any], manager: str, api_version: str) -> Tree | None:
    """The fields of our entry; None without one, or if an apply would renew its version."""
    metadata = cast("Tree", live.get("metadata") or {})
    for entry in cast("list[Tree]", metadata.get("managedFields") or []):
        is_ours = entry.get("manager") == manager and entry.get("operation") == "Apply"
        if is_ours and not entry.get("subresource"):
            is_current = entry.get("apiVersion") == api_version
            return cast("Tree", entry.get("fieldsV1") or {}) if is_current else None
    return None


def _same(owned: Tree, wanted: Any, live: Any) -> bool:
    parts = {key: tree for key, tree in owned.items() if key != "."}
    if not parts:
        return equal(wanted, live)
    if all(key.startswith("f:") for key in parts):
        return _same_members(parts, wanted, live)
    if all(key.startswith("k:") for key in parts):
        return _same_items(parts, wanted, live)
    if all(key.startswith("v:") for key in parts):
        return _same_set(parts, wanted, live)
    return equal(wanted, live)


def _same_members(parts: Tree, wanted: Any, live: Any) -> bool:
    if not isinstance(wanted, dict) or not isinstance(live, dict):
        return False
    ours, theirs = cast("Tree", wanted), cast("Tree", live)
    names = {key[2:] for key in parts}
    unowned = {key for key, value in ours.items() if key not in names and not _is_empty(value)}
    if unowned or not names <= ours.keys():
        return False
    return all(_same(parts[f"f:{key}"], ours[key], theirs.get(key)) for key in names)


def _same_items(parts: Tree, wanted: Any, live: Any) -> bool:
    if not isinstance(wanted, list) or not isinstance(live, list):
        return False
    ours = cast("list[Any]", wanted)
    if len(ours) != len(parts):
        return False
    for text, tree in parts.items():
        key = cast("Tree", json.loads(text[2:]))
        mine, other = _item(ours, key), _item(cast("list[Any]", live), key)
        if mine is None or other is None:
            return False
        # Members of the key may come from defaults (a port's protocol); the live item shows them.
        defaulted = {name: value for name, value in key.items() if f"f:{name}" in tree}
        if not _same(tree, {**defaulted, **mine}, other):
            return False
    return True


def _item(items: list[Any], key: Tree) -> Tree | None:
    """The item with this key; else one that matches except for members that have defaults."""
    candidates = [cast("Tree", item) for item in items if isinstance(item, dict)]
    exact = [one for one in candidates if all(one.get(k) == v for k, v in key.items())]
    loose = [one for one in candidates if all(one.get(k, v) == v for k, v in key.items())]
    return next(iter(exact or loose), None)


def _same_set(parts: Tree, wanted: Any, live: Any) -> bool:
    if not isinstance(wanted, list) or not isinstance(live, list):
        return False
    values = [json.loads(text[2:]) for text in parts]
    ours, theirs = cast("list[Any]", wanted), cast("list[Any]", live)
    return len(ours) == len(values) and all(v in ours and v in theirs for v in values)


def _is_empty(value: Any) -> bool:
    """Whether a server drops the value, so that nobody owns it."""
    return value is None or value in ({}, [])


def equal(wanted: Any, live: Any) -> bool:
    """Whether two values are the same to a server: `1000m` is `1`, and empty is absent."""
    if _is_empty(wanted) and (_is_empty(live) or live == ""):
        return True
    if isinstance(wanted, dict) and isinstance(live, dict):
        ours, theirs = cast("Tree", wanted), cast("Tree", live)
        return all(equal(ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys())
    if isinstance(wanted, list) and isinstance(live, list):
        mine, other = cast("list[Any]", wanted), cast("list[Any]", live)
        return len(mine) == len(other) and all(map(equal, mine, other))
    if isinstance(wanted, bool) or isinstance(live, bool):
        return wanted is live
    return wanted == live or _is_same_quantity(wanted, live)


def _is_same_quantity(wanted: Any, live: Any) -> bool:
    """Whether both are the same quantity: servers store `1000m` as `1`."""
    first, second = _quantity(wanted), _quantity(live)
    return first is not None and first == second


def _quantity(value: Any) -> Decimal | None:
    text = str(value) if isinstance(value, str | int | float) else ""
    digits = text.rstrip("numkMGTPKi")
    factor = _SUFFIXES.get(text[len(digits) :])
    if not digits or factor is None:
        return None
    try:
        return Decimal(digits) * factor
    except InvalidOperation:
        return None
