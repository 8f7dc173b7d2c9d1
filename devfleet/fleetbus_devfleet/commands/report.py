"""Output of `fleetbus dev`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fleetbus_devfleet.commands.hints import hints
from fleetbus_devfleet.commands.options import EnvOutput
from fleetbus_devfleet.stack.plan import fleet_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_devfleet.stack.plan import Layout
    from fleetbus_devfleet.stack.state import PartStatus, StackState

_HINT_WIDTH = 56
_STYLES = {"ready": "green", "not ready": "yellow", "ended": "red"}


def console() -> Console:
    """The console for people, on standard output; paths are never wrapped or coloured apart."""
    return Console(highlight=False, soft_wrap=True)


def print_running(state: StackState, layout: Layout, *, title: str) -> None:
    """Print what runs and what to try."""
    out = console()
    clusters = "cluster" if len(state.clusters) == 1 else "clusters"
    out.print(
        f"[bold green]{title}[/]: {len(state.clusters)} {clusters} "
        f"({', '.join(state.clusters)}), {len(state.parts) + 1} processes."
    )
    for hint in hints(state, layout):
        command = escape(hint.command.ljust(_HINT_WIDTH))
        out.print(f"  [cyan]{command}[/]  [dim]# {escape(hint.meaning)}[/]")
    out.print(f"[dim]{_addresses(state)}[/]")


def print_status(state: StackState, parts: Sequence[PartStatus]) -> None:
    """Print one line per process."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("PART", "PID", "STATE", "PROBLEM"):
        table.add_column(title, overflow="fold")
    table.add_row("supervisor", str(state.pid), Text(state.phase), "")
    for part in parts:
        style = _STYLES[part.state]
        table.add_row(part.name, str(part.pid), Text(part.state, style=style), escape(part.problem))
    out = console()
    out.print(table)
    out.print(f"[dim]{_addresses(state)}[/]")


def _addresses(state: StackState) -> str:
    urls = {
        "NATS": state.nats_url,
        "Valkey": state.redis_url,
        "API": state.api_url,
        "admin endpoint": state.admin_url,
    }
    return "   ".join(f"{name} {url}" for name, url in urls.items() if url)


def print_problems(parts: Sequence[PartStatus]) -> None:
    """Name the parts that are not ready; say nothing when all are."""
    out = console()
    for part in parts:
        if part.problem:
            style = _STYLES[part.state]
            out.print(f"[{style}]{part.name}[/] is not ready: {escape(part.problem)}")


def print_json(state: StackState | None, parts: Sequence[PartStatus]) -> None:
    """Print the state and the parts for a program; `phase` is `stopped` when nothing runs."""
    answer: dict[str, Any] = {"phase": "stopped", "parts": []} if state is None else asdict(state)
    answer["parts"] = [asdict(part) for part in parts]
    sys.stdout.write(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_settings(state: StackState, output: EnvOutput) -> None:
    """Print the variables that make any program use this stack."""
    settings = {
        **fleet_settings(
            nats_url=state.nats_url,
            redis_url=state.redis_url,
            kubeconfig=state.kubeconfig,
            hub=state.clusters[0],
        ),
        "FLEETBUS_API_URL": state.api_url,
        "KUBECONFIG": state.kubeconfig,
    }
    if output is EnvOutput.json:
        sys.stdout.write(orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    for name, value in settings.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def print_nothing_runs(layout: Layout) -> None:
    """Print that no fleet runs in this folder."""
    console().print(
        f"No fleet runs in {escape(str(layout.root))}; --dir names the folder of another one."
    )


def print_stopped(state: StackState) -> None:
    """Print that the fleet is stopped."""
    console().print(f"Stopped {len(state.parts) + 1} processes; none is left.")


def print_failure(message: str) -> None:
    """Print an error on standard error."""
    error = Console(stderr=True, highlight=False, soft_wrap=True)
    error.print(f"[bold red]fleetbus dev:[/] {escape(message)}")
