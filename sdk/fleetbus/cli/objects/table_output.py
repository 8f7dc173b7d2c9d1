"""Prints rows as they come, with the widths of the first page, as kubectl does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

_GAP: Final = "   "
_FIRST_PAGE: Final = 500
"""Rows that settle the widths; a longer cell after them moves its row to the right."""
_BREAKS: Final = "\n\r\f"
_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_YELLOW: Final = "\x1b[33m"
_PLAIN: Final = "\x1b[0m"
_BAD: Final = frozenset(
    {
        *("CrashLoopBackOff", "Error", "Evicted", "Failed", "ImagePullBackOff", "ErrImagePull"),
        *("NotReady", "OOMKilled", "Lost", "Unknown", "CreateContainerConfigError"),
    }
)
_ON_THE_WAY: Final = frozenset({"Pending", "Terminating", "ContainerCreating", "Released"})


def has_colours() -> bool:
    """Whether stdout is a terminal, and nobody has said NO_COLOR."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def print_rows(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, no_headers: bool = False
) -> int:
    """Print a table; return how many rows it has. Without any, nothing is printed.

    Args:
        head: the names of the columns.
        rows: their cells.
        no_headers: leave out the line with the names.
    """
    left = iter(rows)
    first = [_clean_all(row) for row in islice(left, _FIRST_PAGE)]
    if not first:
        return 0
    names = [name.upper() for name in head]
    shown = first if no_headers else [names, *first]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    colours = _Colours(names) if has_colours() else None
    if not no_headers:
        line = _join(names, widths)
        _write(f"{_BOLD}{line}{_PLAIN}" if colours else line)
    count = 0
    for row in chain(first, map(_clean_all, left)):
        count += 1
        line = _join(row, widths)
        _write(colours.paint(line, row) if colours else line)
    return count


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(map(str.ljust, cells, widths)).rstrip()


def _clean_all(row: Sequence[str]) -> list[str]:
    return [cell if cell.isprintable() else clean(cell) for cell in row]


def clean(cell: str) -> str:
    """The first line of a cell, without what a terminal would obey."""
    ends = [at for mark in _BREAKS if (at := cell.find(mark)) >= 0]
    if ends:
        cell = cell[: min(ends)] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in cell)


class _Colours:
    """Colours the rows whose status needs a look."""

    def __init__(self, names: Sequence[str]) -> None:
        self._at = names.index("STATUS") if "STATUS" in names else None

    def paint(self, line: str, row: Sequence[str]) -> str:
        word = row[self._at].rpartition(":")[2] if self._at is not None else ""
        colour = _RED if word in _BAD else _YELLOW if word in _ON_THE_WAY else ""
        return f"{colour}{line}{_PLAIN}" if colour else line
