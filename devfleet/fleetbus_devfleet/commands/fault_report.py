"""Output of `fleetbus dev fault`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fleetbus.process import printer
from fleetbus_devfleet.console import lines_console
from fleetbus_emulator.apiserver.admin.documents import encode
from fleetbus_emulator.apiserver.faults import GroupDown
from fleetbus_emulator.apiserver.faults.documents import (
    ACTION_FIELDS,
    ACTIONS,
    RULE_FIELDS,
    Field,
    fields_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fleetbus_emulator.apiserver.admin import ClusterInfo

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterFaults:
    """The faults of one cluster, as the admin endpoint reports them."""

    cluster: ClusterInfo
    rules: list[JsonObject]


def words_of(rule: JsonObject) -> str:
    """A rule in the words that add it."""
    fields = fields_of(rule["action"])
    parts = [
        shlex.quote(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        for name, value in rule.items()
        if name in fields and value != fields[name].show(fields[name].default)
    ]
    return " ".join([rule["action"], *parts])


def print_added(added: Sequence[tuple[str, JsonObject]]) -> None:
    """Print the rules that were added."""
    for cluster, rule in added:
        print_line(f"{cluster}: rule {rule['id']}: {words_of(rule)}")
        _warn(cluster, rule)


def print_list(entries: Sequence[ClusterFaults]) -> None:
    """Print a line for each thing that is broken."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("CLUSTER", "ID", "WHAT", "HITS", "STATE"):
        table.add_column(title, overflow="fold")
    rows = [(entry.cluster.name, *row) for entry in entries for row in _rows(entry)]
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    if rows:
        lines_console().print(table)
    else:
        print_line(f"Nothing is broken in {', '.join(entry.cluster.name for entry in entries)}.")
    for entry in entries:
        for rule in entry.rules:
            _warn(entry.cluster.name, rule)


def _warn(cluster: str, rule: JsonObject) -> None:
    if warning := rule.get("warning"):
        print_failure(f"warning: {cluster}: rule {rule['id']}: {warning}")


def _rows(entry: ClusterFaults) -> Iterator[tuple[str, str, str, str]]:
    if entry.cluster.partition is not None:
        yield "", f"partition {entry.cluster.partition}", "", "active"
    elif not entry.cluster.listening:
        yield "", "stopped", "", "active"
    for rule in entry.rules:
        state = "active" if rule["active"] else "spent"
        yield str(rule["id"]), words_of(rule), str(rule["hits"]), state


def print_json(entries: Sequence[ClusterFaults]) -> None:
    """Print the same for a program."""
    parts = [{"cluster": entry.cluster, "faults": entry.rules} for entry in entries]
    printer.json_text(encode(parts).decode())


def print_actions() -> None:
    """Print each action with its fields, and the fields of every rule."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("ACTION", "FIELDS", "WHAT HAPPENS"):
        table.add_column(title, overflow="fold")
    for name, shape in ACTIONS.items():
        meaning = (shape.__doc__ or "").strip().splitlines()[0]
        fields = [_shown(field, kind) for field, kind in ACTION_FIELDS[name].items()]
        needed = [f"group={_EXAMPLE_GROUP}"] if shape is GroupDown else []
        table.add_row(name, escape(" ".join(needed + fields)), escape(meaning))
    out = lines_console()
    out.print(table)
    out.print()
    out.print(f"Every rule may have: {escape(' '.join(RULE_FIELDS))}.")


def _shown(field: str, kind: Field) -> str:
    values = "|".join(kind.choices) or _EXAMPLES_OF.get(field) or _EXAMPLES[kind.kind]
    return f"{field}={values}" if kind.needed else f"[{field}={values}]"


_EXAMPLE_GROUP = "apps"
_EXAMPLES_OF = {"status": "503", "resourceVersion": "1234"}
_EXAMPLES: dict[type, str] = {timedelta: "1s", bool: "true", int: "1", float: "0.5", str: "text"}


def print_line(text: str) -> None:
    """Print one line as it stands."""
    lines_console().print(escape(text))


def print_failure(message: str) -> None:
    """Print an error on standard error."""
    lines_console(stderr=True).print(f"[bold red]fleetbus dev fault:[/] {escape(message)}")
