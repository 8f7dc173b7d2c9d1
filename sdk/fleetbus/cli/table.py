"""Plain columns, left-aligned, as kubectl prints them; and what is said beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleetbus.cli.human_time import render_span

_GAP: Final = "   "


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with a head; a cell never brings control characters to the terminal."""
    lines = [head, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def warn_incomplete(freshness: Mapping[str, Any], incomplete: Sequence[str]) -> None:
    """Say which clusters' part of an answer may lack something or be old (rule A4)."""
    for name in incomplete:
        known: Mapping[str, Any] = freshness.get(name) or {}
        age = known.get("ageSeconds")
        heard = "never heard of" if age is None else f"last heard of {render_span(age)} ago"
        reason = str(known.get("reason") or known.get("state") or "")
        said = heard if reason in {"", heard} else f"{_plain(reason)}; {heard}"
        print(f"warning: {name} is incomplete: {said}", file=sys.stderr)


def _plain(cell: str) -> str:
    if not cell:
        return "<none>"
    if cell.isprintable():
        return cell
    return "".join(letter if letter.isprintable() else "?" for letter in cell)
