"""Prints rows as they come, with the widths of the first page, as kubectl does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from fleetbus.process import printer
from fleetbus.process.printer import printable

_GAP: Final = "   "
_FIRST_PAGE: Final = 500
"""Rows that settle the widths; a longer cell after them moves its row to the right."""
_BREAKS: Final = "\n\r\f"
_BAD: Final = frozenset(
    {
        *("CrashLoopBackOff", "Error", "Evicted", "Failed", "ImagePullBackOff", "ErrImagePull"),
        *("NotReady", "OOMKilled", "Lost", "Unknown", "CreateContainerConfigError"),
    }
)
_ON_THE_WAY: Final = frozenset({"Pending", "Terminating", "ContainerCreating", "Released"})


def print_rows(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, no_headers: bool = False
) -> int:
    """Print a table; return how many rows it has. Without any, nothing is printed.

    Args:
        head: the names of the columns.
        rows: their cells.
        no_headers: leave out the line with the names.
    """
    return TablePrinter(head, no_headers=no_headers).print(rows)


class TablePrinter:
    """Prints a table that may go on: its first rows settle the widths.

    Args:
        head: the names of the columns.
        no_headers: leave out the line with the names.
        first_page: how many rows settle the widths.
    """

    def __init__(
        self, head: Sequence[str], *, no_headers: bool = False, first_page: int = _FIRST_PAGE
    ) -> None:
        self._first_page = first_page
        self._names = [name.upper() for name in head]
        self._no_headers = no_headers
        self._widths: list[int] = []
        self._colours = _Colours(self._names)

    def print(self, rows: Iterable[Sequence[str]], *, mark: str = "") -> int:
        """Print rows, the first ones below the names; return how many.

        Args:
            rows: their cells.
            mark: what stands behind each of them.
        """
        left = map(_clean_all, rows)
        if not self._widths:
            left = self._begin(left)
        count = 0
        for row in left:
            count += 1
            printer.line(_join(row, self._widths) + mark, style=self._colours.style_of(row))
        return count

    def _begin(self, rows: Iterator[list[str]]) -> Iterator[list[str]]:
        """Settle the widths and print the names, if there is a row."""
        first = list(islice(rows, self._first_page))
        if first:
            table = first if self._no_headers else [self._names, *first]
            self._widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
            if not self._no_headers:
                printer.line(_join(self._names, self._widths), style="bold")
        return chain(first, rows)


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(map(str.ljust, cells, widths)).rstrip()


def _clean_all(row: Sequence[str]) -> list[str]:
    return [cell if cell.isprintable() else clean(cell) for cell in row]


def clean(cell: str) -> str:
    """The first line of a cell, without what a terminal would obey."""
    ends = [at for mark in _BREAKS if (at := cell.find(mark)) >= 0]
    if ends:
        cell = cell[: min(ends)] + "..."
    return printable(cell)


class _Colours:
    """Colours the rows whose status needs a look."""

    def __init__(self, names: Sequence[str]) -> None:
        self._at = names.index("STATUS") if "STATUS" in names else None

    def style_of(self, row: Sequence[str]) -> printer.Style:
        word = row[self._at].rpartition(":")[2] if self._at is not None else ""
        return "red" if word in _BAD else "yellow" if word in _ON_THE_WAY else ""
