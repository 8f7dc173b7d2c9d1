"""Ranks the rows of a segment by one sort key, and leaves out most of those that are too late.

A page has a hundred rows of maybe a hundred thousand: once as many are found, almost every other
row comes after them all, and must be left out for less than it costs to rank it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from fleetbus_query_api.fields.column import FieldColumn
from fleetbus_query_api.fields.matching import Segment, value_reader
from fleetbus_query_api.fields.order import (
    COMPARED,
    NAME,
    Rank,
    SortKey,
    rank_of,
    text_of,
)

RowRank: TypeAlias = Callable[[int], Rank]
Sieve: TypeAlias = Callable[[Sequence[int], Rank], Sequence[int]]
"""Leaves out rows whose rank is above the given one; not necessarily all of them."""

_AFTER_NUMBERS: Final = b":"
"""Above the first character of every ASCII name that is a number, a quantity or a time."""
_AFTER_ASCII: Final = b"\x80"
"""Names from here on are never left out: there are more digits than those of ASCII."""
_AFTER_TEXT: Final = b"\xff"
"""Above every byte of UTF-8."""


def rank_reader(segment: Segment, key: SortKey) -> tuple[RowRank, Sieve]:
    """Functions that rank a row by a key, and that leave out rows by their rank."""
    if (column := segment.columns.get(key.path)) is not None:
        return _column_reader(column, is_descending=key.is_descending)
    read = value_reader(segment, key.path)
    ranks: dict[Any, Rank] = {}

    def rank(row: int) -> Rank:
        value = read(row)
        ranking = ranks.get(value)
        if ranking is None:
            ranking = ranks[value] = rank_of(value, is_descending=key.is_descending)
        return ranking

    if key.path == NAME:
        return rank, _name_sieve(segment.keys, is_descending=key.is_descending)
    return rank, lambda rows, most: [row for row in rows if rank(row) <= most]


def _column_reader(column: FieldColumn, *, is_descending: bool) -> tuple[RowRank, Sieve]:
    """Each distinct value is ranked once."""
    codes = column.codes
    ranks: list[Rank | None] = [None] * len(column.values)

    def rank(row: int) -> Rank:
        code = codes[row]
        ranking = ranks[code]
        if ranking is None:
            ranking = ranks[code] = rank_of(column.values[code], is_descending=is_descending)
        return ranking

    return rank, lambda rows, most: [row for row in rows if rank(row) <= most]


def _name_sieve(keys: Sequence[bytes], *, is_descending: bool) -> Sieve:
    """Compares names as bytes, whose order is that of their characters."""

    def keep(rows: Sequence[int], most: Rank) -> Sequence[int]:
        text = text_of(most)
        if is_descending:
            if text is None:  # a number: all texts come before it
                return rows
            bound = text.encode()
            return [row for row in rows if keys[row].partition(b"/")[2] >= bound]
        bound = _AFTER_NUMBERS
        if text is not None:
            # What is behind the compared characters does not count.
            end = _AFTER_TEXT if len(text) == COMPARED else b""
            bound = max(bound, text.encode() + end)
        return [row for row in rows if not bound < keys[row].partition(b"/")[2] < _AFTER_ASCII]

    return keep
