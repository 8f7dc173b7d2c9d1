"""Prints tables as kubectl does, and warnings about incomplete answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleetbus.process import printer
from fleetbus.process.human_time import render_duration
from fleetbus.process.printer import printable

_GAP: Final = "   "
_NAMED: Final = 5
"""Number of clusters that one warning names."""
_MOST_UNDETERMINED: Final = 100
"""Objects that an answer names because it is unknown what they were."""


_NOT_WATCHED: Final = "not watched there"
"""The reason that the query API gives for a cluster that reports no such resource."""


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table with a header; control characters in cells are replaced.

    A column may go without a name; a cell without a value is `<none>`.
    """
    widths = column_widths(head, rows)
    named = _GAP.join(name.ljust(width) for name, width in zip(head, widths, strict=True))
    return "\n".join([named.rstrip(), *(render_row(line, widths) for line in rows)])


def column_widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column of a table."""
    lines = [head, *([_plain(cell) for cell in row] for row in rows)]
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def render_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Render a row of a table; a cell that is wider than its column moves those after it."""
    padded = (_plain(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()


def resource_prefix(resource: Mapping[str, Any]) -> str:
    """The prefix that kubectl gives names where several resources are shown: `deployment.apps/`."""
    kind, group = str(resource["kind"] or resource["plural"]).lower(), resource["group"]
    return f"{kind}/" if group == "core" else f"{kind}.{group}/"


def warn_incomplete(
    freshness: Mapping[str, Any], incomplete: Sequence[str], *, named: Sequence[str] = ()
) -> None:
    """Warn of clusters whose part of an answer may be incomplete or stale (rule A4).

    A cluster that does not serve a type has no objects of it: it is mentioned only if it was named.
    """
    alike: dict[str, list[str]] = {}
    for name in incomplete:
        alike.setdefault(_describe_reason(freshness.get(name) or {}), []).append(name)
    for why, names in alike.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        listed = ", ".join(names[:_NAMED])
        if why.startswith(_NOT_WATCHED):  # most often, the resource is just not served there
            requested = [name for name in names if name in named]
            if requested:
                printer.note(f"note: not served, or not watched, in {', '.join(requested)}")
            continue
        verb = "are" if len(names) > 1 else "is"
        printer.note(f"warning: {listed}{more} {verb} incomplete: {why}")


def warn_undetermined(objects: Sequence[Mapping[str, str]]) -> None:
    """Say in one line that it is unknown what objects were, and from when on it is known."""
    if not objects:
        return
    first = objects[0]
    name = "/".join(filter(None, (first["namespace"], first["name"])))
    # A query API of an earlier release says neither the type nor the time.
    example = " ".join(filter(None, (first["cluster"], first.get("resource"), name)))
    if len(objects) == 1:
        printer.note(f"warning: unknown at that time: {example}: {first['reason']}")
        return
    count = (
        f"{_MOST_UNDETERMINED} objects or more"
        if len(objects) >= _MOST_UNDETERMINED
        else f"{len(objects)} objects"
    )
    latest = max(each.get("knownFrom", "") for each in objects)
    from_when = f"; their past is known from {latest}" if latest else ""
    printer.note(f"warning: unknown at that time: {count}, such as {example}{from_when}")


def _describe_reason(freshness: Mapping[str, Any]) -> str:
    age = freshness.get("ageSeconds")
    reason = _plain(str(freshness.get("reason") or freshness.get("state") or "unknown"))
    if age is None:
        return reason
    return f"{reason}; its API server last answered {render_duration(age)} ago"


def _plain(cell: str) -> str:
    return printable(cell) if cell else "<none>"
