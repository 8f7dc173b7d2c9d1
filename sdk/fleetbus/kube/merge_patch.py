"""JSON merge patches: compute the smallest one, apply one."""

from __future__ import annotations

from typing import Any, cast

Object = dict[str, Any]


def smallest_patch(before: Object, after: Object) -> Object:
    """The merge patch that turns one tree into the other; empty when they are equal.

    Lists are replaced as a whole. A null in `after` counts as an absent field.
    """
    patch: Object = {key: None for key in before.keys() - after.keys() if before[key] is not None}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := smallest_patch(cast("Object", old), cast("Object", value)):
                patch[key] = inner
        elif not _is_same(old, value):
            patch[key] = value
    return patch


def merged(tree: Any, patch: Any) -> Any:
    """Apply a merge patch to a tree (RFC 7396); neither is modified."""
    if not isinstance(patch, dict):
        return patch
    result = dict(cast("Object", tree)) if isinstance(tree, dict) else {}
    for key, value in cast("Object", patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def is_merged(tree: Object, patch: Object) -> bool:
    """Whether a merge patch changes nothing."""
    return not smallest_patch(tree, cast("Object", merged(tree, patch)))


def _is_same(old: Any, new: Any) -> bool:
    """Compare as JSON: 1 and true are equal in Python only."""
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        first, second = cast("list[Any]", old), cast("list[Any]", new)
        return len(first) == len(second) and all(map(_is_same, first, second))
    if isinstance(old, dict) and isinstance(new, dict):
        return not smallest_patch(cast("Object", old), cast("Object", new))
    return bool(old == new)
