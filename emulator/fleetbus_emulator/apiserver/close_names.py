"""Finds the name that somebody meant, in bounded time: a definition may have any name."""

from __future__ import annotations

import heapq
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST: Final = 253
"""Characters of a name that is compared."""
_MOST: Final = 1_000
"""Names whose letters are counted."""
_COMPARED: Final = 8
"""Names that are compared, which takes the square of their length."""


def closest_name(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The closest name; empty if none is at least as similar as the cutoff, from 0 to 1."""
    if len(name) > _LONGEST:
        return ""
    matcher = SequenceMatcher(b=name)

    def similarity(other: str, *, exact: bool) -> float:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() < cutoff:
            return 0
        return matcher.ratio() if exact else matcher.quick_ratio()

    short = (each for each in islice(names, _MOST) if len(each) <= _LONGEST)
    likely = heapq.nlargest(_COMPARED, ((similarity(each, exact=False), each) for each in short))
    rated = ((similarity(each, exact=True), each) for _, each in likely)
    best, closest = max(rated, default=(0.0, ""))
    return closest if best >= cutoff else ""
