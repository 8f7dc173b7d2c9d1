"""Shows the difference between an object as it is and as it would be, without secret values."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, cast

from fleetbus.owned_objects.secret_values import Path, name_of, secrets_in
from fleetbus.process.redact import MARK
from fleetbus_cli.documents import render_yaml

_SET_BY_SERVER: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""It repeats the whole object, values of a Secret included."""
_CHANGED: Final = "<redacted, changed>"
_CONTEXT: Final = 3
_MOST_WORK: Final = 1_000_000_000
"""A few seconds."""


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The lines of a unified diff of what a user writes; empty if only the ownership changes."""
    old, new = without_server_fields(before), without_server_fields(after)
    secrets = dict(secrets_in(old))
    return diff_lines(hide(old, secrets), hide(new, dict(secrets_in(new)), secrets))


def diff_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The lines of a unified diff of two trees, as YAML; an empty tree has no lines."""
    old, new = (render_yaml(tree).splitlines() if tree else [] for tree in (before, after))
    if not _is_cheap(old, new):
        return [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    lines = difflib.unified_diff(old, new, lineterm="", n=_CONTEXT)
    return list(lines)[2:]  # without the names of files


def _is_cheap(old: list[str], new: list[str]) -> bool:
    """Whether two texts can be compared line by line within seconds.

    Where the same lines occur again and again, it takes the cube of their number.
    """
    counts, others = Counter(old), Counter(new)
    popular = len(new) // 100 + 1  # difflib skips what occurs more often in a long text
    pairs = sum(counts[line] * count for line, count in others.items() if count <= popular)
    return pairs * min(len(old), len(new)) <= _MOST_WORK


def without_server_fields(tree: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its status, and without what only the server sets."""
    metadata = {k: v for k, v in tree["metadata"].items() if k not in _SET_BY_SERVER}
    if isinstance(annotations := metadata.get("annotations"), dict):
        every = cast("dict[str, Any]", annotations)
        metadata["annotations"] = {k: v for k, v in every.items() if k != _LAST_APPLIED}
    body = {k: v for k, v in tree.items() if k not in ("status", "metadata")}
    return {
        "apiVersion": body.pop("apiVersion", ""),
        "kind": body.pop("kind", ""),
        "metadata": metadata,
        **body,
    }


def hide(
    tree: Mapping[str, Any], secrets: Mapping[Path, str], before: Mapping[Path, str] | None = None
) -> dict[str, Any]:
    """A tree with a mark in place of each secret value.

    Args:
        tree: an object, or a part of a spec.
        secrets: its secret values.
        before: those that it had; a value that differs gets another mark.
    """
    return cast("dict[str, Any]", _marked(tree, (), secrets, before or {}))


def _marked(value: Any, path: Path, secrets: Mapping[Path, str], before: Mapping[Path, str]) -> Any:
    if path in secrets:
        return _CHANGED if before.get(path, secrets[path]) != secrets[path] else MARK
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {k: _marked(v, (*path, k), secrets, before) for k, v in members.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _marked(item, (*path, name_of(item, at)), secrets, before)
            for at, item in enumerate(items)
        ]
    return value
