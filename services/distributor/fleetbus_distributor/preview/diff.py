"""Shows the difference between an object as it is and as it would be, without secret values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from fleetbus.cli.documents import render_yaml
from fleetbus_distributor.targets.target import SENSITIVE_NAME

Path: TypeAlias = tuple[str, ...]

_SET_BY_SERVER: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""It repeats the whole object, values of a Secret included."""
_HIDDEN: Final = "<redacted>"
_CHANGED: Final = "<redacted, changed>"
_CONTEXT: Final = 3


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The lines of a unified diff of what a user writes; empty if only the ownership changes."""
    old, new = _shown(before), _shown(after)
    secrets = dict(_secrets(old))
    hidden_old = _hide(old, {})
    hidden_new = _hide(new, secrets)
    lines = difflib.unified_diff(
        render_yaml(hidden_old).splitlines(),
        render_yaml(hidden_new).splitlines(),
        lineterm="",
        n=_CONTEXT,
    )
    return list(lines)[2:]  # without the names of files


def _shown(tree: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its status, and without what only the server sets."""
    metadata = {k: v for k, v in tree["metadata"].items() if k not in _SET_BY_SERVER}
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    body = {k: v for k, v in tree.items() if k not in ("status", "metadata")}
    return {
        "apiVersion": body.pop("apiVersion", ""),
        "kind": body.pop("kind", ""),
        "metadata": metadata,
        **body,
    }


def _hide(tree: dict[str, Any], before: Mapping[Path, str]) -> dict[str, Any]:
    """An object with a mark in place of each secret value.

    Args:
        tree: the object.
        before: the secret values that it had; a value that differs gets another mark.
    """
    secrets = dict(_secrets(tree))
    return cast("dict[str, Any]", _marked(tree, (), secrets, before))


def _marked(value: Any, path: Path, secrets: Mapping[Path, str], before: Mapping[Path, str]) -> Any:
    if path in secrets:
        return _CHANGED if before.get(path, secrets[path]) != secrets[path] else _HIDDEN
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {k: _marked(v, (*path, k), secrets, before) for k, v in members.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _marked(one, (*path, _name_of(one, at)), secrets, before)
            for at, one in enumerate(items)
        ]
    return value


def _secrets(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Each secret value with its path: of Secrets all, else those of members with such names."""
    is_secret = tree.get("kind") == "Secret"
    for name, part in tree.items():
        is_data = is_secret and name in ("data", "stringData")
        yield from _strings(part, (name,), "", is_secret=is_data)


def _strings(value: Any, path: Path, called: str, *, is_secret: bool) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        own = str(members.get("name", ""))
        for key, member in members.items():
            name = own if key == "value" else key
            yield from _strings(member, (*path, key), name, is_secret=is_secret)
    elif isinstance(value, list):
        for at, one in enumerate(cast("list[Any]", value)):
            inner = (*path, _name_of(one, at))
            yield from _strings(one, inner, called, is_secret=is_secret)
    elif is_secret or (isinstance(value, str) and SENSITIVE_NAME.search(called)):
        yield path, str(value)


def _name_of(item: Any, at: int) -> str:
    """The name of an item of a list, by which it is recognised after it moved; else its place."""
    name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
    return str(name) if isinstance(name, str) and name else str(at)
