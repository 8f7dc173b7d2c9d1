"""Bounds the work of comparing trees, which grows with their values and their depth (rule A8).

Trees are compared level by level, from the root to what differs, and at each level all that is
below it: an object of 1 MB that is one list below 50 maps would be compared 50 times.
"""

from __future__ import annotations

from typing import Any, Final, cast

_COMPARED: Final = 1_500_000
"""Values that a comparison visits, counted once for each level; about 100 ms."""
_LARGE: Final = 60_000
"""Values of a tree that is compared at the fewest levels only."""
_FEWEST: Final = 2


def count_values(tree: object, *, most: int) -> int:
    """The number of entries of all maps and lists of a tree; any larger number if over `most`."""
    total, left = 0, [tree]
    while left and total <= most:
        value = left.pop()
        if isinstance(value, dict):
            inner = list(cast("dict[str, Any]", value).values())
        elif isinstance(value, list):
            inner = cast("list[Any]", value)
        else:
            continue
        total += len(inner)
        if total <= most:
            left += [each for each in inner if isinstance(each, dict | list)]
    return total


def compared_levels(*trees: object, deepest: int) -> int:
    """The number of levels to compare; what differs below them is shown as a whole.

    Args:
        trees: that are compared with each other.
        deepest: the most, however small they are.
    """
    counts = [count_values(tree, most=_LARGE) for tree in trees]
    if max(counts, default=0) > _LARGE:
        return _FEWEST
    return max(_FEWEST, min(deepest, _COMPARED // max(sum(counts), 1)))
