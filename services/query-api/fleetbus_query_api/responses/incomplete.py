"""Headers that name the incomplete clusters, where the body has no place for them (rule A4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fleetbus.snapshot import Freshness

INCOMPLETE_HEADER: Final = "Fleetbus-Incomplete"
"""`"<cluster>";age=<seconds>;reason="<text>", …` (a structured field, RFC 9651); those for which
there is no room are counted in a last item, `"*";more=<count>`."""

_MAX_BYTES: Final = 6000
"""Size of the header: clients refuse one of more than 8,190."""


def incomplete_header(freshness: Mapping[str, Freshness]) -> dict[str, str]:
    """The header that names incomplete clusters; empty if there are none."""
    marks = [
        _incomplete_item(name, state)
        for name, state in sorted(freshness.items())
        if not state.is_complete
    ]
    return {INCOMPLETE_HEADER: _join(marks)} if marks else {}


def _join(marks: list[str]) -> str:
    size = 0
    for at, mark in enumerate(marks):
        size += len(mark) + 2
        if size > _MAX_BYTES:
            return ", ".join([*marks[:at], f'"*";more={len(marks) - at}'])
    return ", ".join(marks)


def _incomplete_item(name: str, freshness: Freshness) -> str:
    age = "" if freshness.age is None else f";age={freshness.age.total_seconds():.0f}"
    return f"{quote(name)}{age};reason={quote(freshness.reason[:200])}"


def quote(text: str) -> str:
    """Quote as a string of RFC 9651, printable ASCII; a reason may quote any server."""
    plain = re.sub(r"[^ -~]", "?", text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
