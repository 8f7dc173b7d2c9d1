"""Prints a revision, as text for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleetbus.process import printer
from fleetbus_cli.documents import render_json, render_yaml
from fleetbus_distributor.hub.rollout_state import named
from fleetbus_distributor.preview.revision_diff import PartChange, diff_fields, show_fields
from fleetbus_distributor.rollout.history import Revision

_STYLES: Final[Mapping[str, printer.Style]] = {"+": "green", "-": "red", "~": "yellow"}


def print_revision(
    title: str,
    revision: Revision,
    before: Revision | None,
    described: Mapping[str, Any],
    *,
    output: str,
) -> None:
    """Print the content of a revision, and what changed since the one before.

    Args:
        title: of the MultiClusterResource.
        revision: the revision.
        before: the one before that is kept, if there is one.
        described: what a list of the revisions says of it.
        output: `table` or `json`.
    """
    content = show_fields(revision.fields)
    changes = diff_fields(before.fields, revision.fields) if before else []
    since = before.ref.number if before else None
    if output == "json":
        parts = [
            {"sign": change.sign, "part": change.name, "diff": change.lines} for change in changes
        ]
        document = {**described, "content": content, "since": since, "changes": parts}
        printer.json_text(render_json(document))
        return
    cause = f": {described['cause']}" if described["cause"] else ""
    clusters = named(described["clusters"]) or "no cluster"
    printer.line(f"{title}: revision {revision.ref.number}{cause}; {clusters}")
    printer.block(f"\n{render_yaml(content)}")
    if since is None:
        printer.line("No earlier revision is kept.")
    else:
        printer.line(f"Since revision {since}:{'' if changes else ' nothing has changed'}")
        _print_changes(changes)


def _print_changes(changes: Sequence[PartChange]) -> None:
    for change in changes:
        printer.line(f"  {change.sign} {change.name}", style=_STYLES[change.sign])
        for line in change.lines:
            printer.line(f"      {line}", style=_STYLES.get(line[:1], ""))
