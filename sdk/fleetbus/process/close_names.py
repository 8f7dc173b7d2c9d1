"""Finds the name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

_LONGEST: Final = 253
"""Characters of a name; longer ones are no names, and comparing takes the square of the length."""
_MOST: Final = 1_000
"""Names that one is compared with; a few milliseconds."""


def close_names(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The closest name, or none if none is close.

    Args:
        name: what was written.
        candidates: the names that there are; of many, only the first ones are compared.
        cutoff: how similar a name must be, from 0 to 1.
    """
    if len(name) > _LONGEST:
        return []
    short = (each for each in islice(candidates, _MOST) if len(each) <= _LONGEST)
    return get_close_matches(name, short, n=1, cutoff=cutoff)
