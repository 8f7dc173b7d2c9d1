"""The order of values: numbers, quantities and times by size, texts by their characters."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import total_ordering
from typing import Any, Final, NamedTuple, TypeAlias

from fleetbus.kube.field_paths import FieldPath, InvalidPath, Scalar, Special, Value
from fleetbus_query_api.fields.column import Undecided
from fleetbus_query_api.responses.problem import BadRequestProblem

MAX_KEYS: Final = 4
COMPARED: Final = 200
"""Characters of a string that are compared; they are part of the continue token."""
_NUMBER, _TIME, _BOOL, _TEXT, _COMPOSITE, _NONE = range(6)
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))([eE][+-]?\d{1,2}|[A-Za-z]{1,2})?"
)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_BINARY: Final = {f"{sign}i": 1024**power for power, sign in enumerate("KMGTPE", 1)}
_DECIMAL: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3} | {
    sign: 1000**power for power, sign in enumerate("kMGTPE", 1)
}
_SUFFIXES: Final[dict[str, float]] = {**_BINARY, **_DECIMAL}
_EXACT: Final = 2**63
"""Integers up to it are sorted exactly, and fit into a token, which may negate them."""
_LARGEST: Final = sys.float_info.max

CLUSTER: Final = FieldPath(("cluster",))
NAMESPACE: Final = FieldPath(("metadata", "namespace"))
NAME: Final = FieldPath(("metadata", "name"))
KEYED: Final = frozenset({NAMESPACE, NAME})
"""Known from the key of a row, without its body."""

Rank: TypeAlias = tuple[int, Any]


class SortKey(NamedTuple):
    """A field to sort by."""

    path: FieldPath
    is_descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.is_descending else ''}{self.path}"


@total_ordering
class _Down:
    """A string that comes before lower ones."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and self.text == other.text

    def __lt__(self, other: _Down) -> bool:
        return other.text < self.text

    def __hash__(self) -> int:
        return hash(self.text)


def parse_paths(parameter: str, text: str, most: int) -> tuple[FieldPath, ...]:
    """Read paths that are separated by commas.

    Raises:
        BadRequestProblem: one is malformed, is given twice, or they are too many.
    """
    parts = [field.strip() for field in text.split(",")] if text.strip() else []
    if len(parts) > most:
        raise BadRequestProblem(f"{parameter} has {len(parts)} fields; at most {most} are allowed")
    try:
        paths = tuple(map(FieldPath.parse, parts))
    except InvalidPath as e:
        raise BadRequestProblem(f"{parameter}: {e}") from e
    if len(set(paths)) < len(paths):
        raise BadRequestProblem(f"{parameter} names a field twice")
    return paths


def parse_sort(text: str) -> tuple[SortKey, ...]:
    """Read `-status.startTime,metadata.name`.

    Raises:
        BadRequestProblem: a path is malformed, is given twice, or they are too many.
    """
    parts = [field.strip() for field in text.split(",")] if text.strip() else []
    paths = parse_paths("sort", ",".join(field.removeprefix("-") for field in parts), MAX_KEYS)
    return tuple(
        SortKey(path, field.startswith("-")) for path, field in zip(paths, parts, strict=True)
    )


def rank_of(value: Value | Undecided, *, is_descending: bool) -> Rank:
    """Where a value comes, in either direction; missing ones are last in both.

    A path with `[*]` is sorted by its first element.
    """
    if isinstance(value, tuple):
        value = value[0] if value else None
    if value is None or isinstance(value, Undecided):
        return (_NONE, 0)
    kind, plain = (_COMPOSITE, 0) if isinstance(value, Special) else _read(value)
    if not is_descending:
        return (kind, plain)
    return (-kind, _Down(plain) if isinstance(plain, str) else -plain)


def text_of(rank: Rank) -> str | None:
    """The text that a rank stands for, cut to `COMPARED`; None for anything but texts."""
    kind, plain = rank
    if abs(kind) != _TEXT:
        return None
    return plain.text if isinstance(plain, _Down) else plain


def dump_ranks(ranks: Sequence[Rank]) -> list[Any]:
    """Ranks as a token has them."""
    return [[kind, rank.text if isinstance(rank, _Down) else rank] for kind, rank in ranks]


def load_ranks(dumped: Sequence[tuple[int, Any]], sort: Sequence[SortKey]) -> tuple[Rank, ...]:
    """Ranks from a token.

    Raises:
        ValueError: they are not those of these keys, so that they could not be compared.
    """
    ranks: list[Rank] = []
    for (kind, rank), key in zip(dumped, sort, strict=True):
        if isinstance(rank, str) is not (abs(kind) == _TEXT):
            raise ValueError(f"{rank!r} is not of kind {kind}")
        is_down = isinstance(rank, str) and key.is_descending
        ranks.append((kind, _Down(rank) if is_down else rank))
    return tuple(ranks)


def _read(value: Scalar) -> tuple[int, float | str]:
    if isinstance(value, bool):
        return _BOOL, int(value)
    if isinstance(value, (int, float)):
        return _NUMBER, _bounded(value)
    if match := _QUANTITY.fullmatch(value):
        number = _quantity(match[1], match[2] or "")
        if number is not None:
            return _NUMBER, _bounded(number)
    if _RFC3339.fullmatch(value):
        try:
            return _TIME, datetime.fromisoformat(value).timestamp()
        except ValueError:
            pass  # a 13th month
    return _TEXT, value[:COMPARED]


def _bounded(number: float) -> float:
    """The number as a token can have it: a large one has the size of the nearest float."""
    if isinstance(number, int) and abs(number) > _EXACT:
        return float(max(min(number, int(_LARGEST)), -int(_LARGEST)))
    return number


def _quantity(digits: str, suffix: str) -> float | None:
    if suffix[-1:].isdecimal():  # an exponent
        return float(digits + suffix)
    factor = _SUFFIXES.get(suffix, 1 if not suffix else None)
    if factor is None:
        return None
    return (float(digits) if "." in digits else int(digits)) * factor
