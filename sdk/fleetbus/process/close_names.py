"""Finds the name that somebody may have meant."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import islice
from typing import Final

_LONGEST: Final = 253
"""Characters of a name; longer ones are no names."""
_MOST: Final = 1_000
"""Names whose letters are counted, which takes the length of each."""
_COMPARED: Final = 8
"""Names that are compared, which takes the square of their length."""


def close_names(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The closest name, or none if none is close.

    Both may come from anybody, in any number: it takes a tenth of a second at most.

    Args:
        name: what was written.
        candidates: the names that there are; of many, only the first ones are compared.
        cutoff: how similar a name must be, from 0 to 1.
    """
    if len(name) > _LONGEST:
        return []
    matcher = SequenceMatcher(b=name)

    def likely(other: str) -> float:
        """An upper bound of the similarity."""
        matcher.set_seq1(other)
        by_length = matcher.real_quick_ratio()
        return matcher.quick_ratio() if by_length >= cutoff else by_length

    def similar(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    short = (each for each in islice(candidates, _MOST) if len(each) <= _LONGEST)
    rated = ((likely(each), each) for each in short)
    first = heapq.nlargest(_COMPARED, (each for each in rated if each[0] >= cutoff))
    near = max(((similar(each), each) for _, each in first), default=(0.0, ""))
    return [near[1]] if near[0] >= cutoff else []
