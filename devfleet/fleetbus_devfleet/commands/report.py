"""Output of `fleetbus dev`."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fleetbus.kube.connection.config import read_kube_config, server_of
from fleetbus.process import printer
from fleetbus_devfleet.captures.opening import read_opened
from fleetbus_devfleet.commands.options import DEFAULT_FOLDER, EnvOutput
from fleetbus_devfleet.console import lines_console
from fleetbus_devfleet.stack.plan import fleet_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fleetbus_devfleet.stack.plan import Layout
    from fleetbus_devfleet.stack.state import PartStatus, StackState


_HINT_WIDTH = 56
_STYLES = {"ready": "green", "not ready": "yellow", "ended": "red"}


def print_running(state: StackState, layout: Layout, *, title: str) -> None:
    """Print what runs and what to try."""
    out = lines_console()
    clusters = "cluster" if len(state.clusters) == 1 else "clusters"
    out.print(
        f"[bold green]{title}[/]: {len(state.clusters)} {clusters} "
        f"({', '.join(state.clusters)}), {len(state.parts) + 1} processes."
    )
    if state.behind_agents:
        out.print(f"  [dim]Called through an agent: {', '.join(state.behind_agents)}.[/]")
    if state.api_url:
        out.print(f"  [bold]{escape(state.api_url)}/[/]  [dim]# the fleet in your browser[/]")
    for hint in hints(state, layout):
        command = escape(hint.command.ljust(_HINT_WIDTH))
        out.print(f"  [cyan]{command}[/]  [dim]# {escape(hint.meaning)}[/]")
    out.print(f"[dim]{_addresses(state)}[/]")


def print_opened(layout: Layout) -> None:
    """Print what came of the capture that the stack was made from, if it was."""
    opened = read_opened(layout.opened)
    if opened is None:
        return
    out = lines_console()
    out.print(f"{opened.total:,} objects of the capture are in its clusters.")
    for note in opened.notes():
        out.print(f"[yellow]note:[/] {escape(note)}")


def print_status(state: StackState, parts: Sequence[PartStatus]) -> None:
    """Print one line per process."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("PART", "PID", "STATE", "PROBLEM"):
        table.add_column(title, overflow="fold")
    table.add_row("supervisor", str(state.pid), Text(state.phase), "")
    for part in parts:
        style = _STYLES[part.state]
        table.add_row(part.name, str(part.pid), Text(part.state, style=style), escape(part.problem))
    out = lines_console()
    out.print(table)
    out.print(f"[dim]{_addresses(state)}[/]")


def _addresses(state: StackState) -> str:
    urls = {
        "NATS": state.nats_url,
        "Valkey": state.redis_url,
        "page and API": state.api_url,
        "admin endpoint": state.admin_url,
    }
    return "   ".join(f"{name} {url}" for name, url in urls.items() if url)


def print_problems(parts: Sequence[PartStatus]) -> None:
    """Name the parts that are not ready; say nothing when all are."""
    out = lines_console()
    for part in parts:
        if part.problem:
            style = _STYLES[part.state]
            out.print(f"[{style}]{part.name}[/] is not ready: {escape(part.problem)}")


def print_json(state: StackState | None, parts: Sequence[PartStatus]) -> None:
    """Print the state and the parts for a program; `phase` is `stopped` when nothing runs."""
    answer: dict[str, Any] = {"phase": "stopped", "parts": []} if state is None else asdict(state)
    answer["parts"] = [asdict(part) for part in parts]
    printer.json_text(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())


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
        printer.json_text(orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode())
        return
    for name, value in settings.items():
        printer.line(f"export {name}={shlex.quote(value)}")


def print_nothing_runs(layout: Layout) -> None:
    """Print that no fleet runs in this folder."""
    lines_console().print(
        f"No fleet runs in {escape(str(layout.root))}; --dir names the folder of another one."
    )


def print_stopped(state: StackState) -> None:
    """Print that the fleet is stopped."""
    lines_console().print(f"Stopped {len(state.parts) + 1} processes; none is left.")


def print_failure(message: str) -> None:
    """Print an error on standard error."""
    lines_console(stderr=True).print(f"[bold red]fleetbus dev:[/] {escape(message)}")


_PACKAGE = Path(__file__).parents[1]
_MANIFEST = _PACKAGE / "demo" / "web.yaml"
_EXAMPLE = _PACKAGE.parents[1] / "examples" / "helloworld" / "controller.py"
_RESOURCES = "apis/fleetbus.dev/v1alpha1/namespaces/default/multiclusterresources"


@dataclass(frozen=True, slots=True)
class Hint:
    """One command and what it shows."""

    command: str
    meaning: str


def hints(state: StackState, layout: Layout) -> list[Hint]:
    """The commands, in the order in which to try them."""
    return [*_preparations(state, layout), *_first_steps(state), *_questions(state, layout)]


def _preparations(state: StackState, layout: Layout) -> Iterator[Hint]:
    scripts = sysconfig.get_path("scripts")
    # `uv run`, so `make up`, adds the folder for its child alone.
    if "UV_RUN_RECURSION_DEPTH" in os.environ or shutil.which("fleetbus") is None:
        yield Hint(f"export PATH={shlex.quote(scripts)}:$PATH", "where the commands below are")
    if not _is_found_by_itself(layout):
        settings = f"fleetbus dev env --dir {_shown(layout.root)}"
        yield Hint(f'eval "$({settings})"', "this fleet, and a context for each of its clusters")
        return
    yield Hint(f"export KUBECONFIG={shlex.quote(state.kubeconfig)}", "a context for each cluster")


def _is_found_by_itself(layout: Layout) -> bool:
    here = Path.cwd()
    return layout.root in (place / DEFAULT_FOLDER for place in (here, *here.parents))


def _first_steps(state: StackState) -> Iterator[Hint]:
    hub = state.clusters[0]
    meaning = "put a Deployment into every member cluster"
    if shutil.which("kubectl"):
        yield Hint(f"kubectl --context {hub} apply -f {_shown(_MANIFEST)}", meaning)
        yield Hint(f"kubectl --context {hub} get mcr", "where it is applied")
    else:
        url = f"{server_of(read_kube_config(state.kubeconfig, hub))}/{_RESOURCES}"
        post = f"curl -sS -H Content-Type:application/yaml --data-binary @{_shown(_MANIFEST)}"
        yield Hint(f"{post} {url}", meaning)


def _questions(state: StackState, layout: Layout) -> Iterator[Hint]:
    yield Hint("fleetbus clusters", "the fleet, and how fresh our view of each cluster is")
    yield Hint("fleetbus get pods", "the Pods of all clusters in one table")
    yield Hint("fleetbus get deployments -o wide", "the same for any other resource")
    yield Hint("kubectl-multicluster list pods", "with the columns of multi_resource_operator")
    yield Hint("fleetbus events -f", "every change of every cluster, live")
    yield Hint("fleetbus diff --since 10m", "what changed, in which clusters, and in which not")
    if _EXAMPLE.exists():
        yield Hint(
            f"fleetbus run {_shown(_EXAMPLE)}", "a reconciler that greets every Pod of the fleet"
        )
    yield Hint(f"curl {state.api_url}/fleet/v1/clusters", "the query API itself")
    folder = ""
    if not _is_found_by_itself(layout):
        folder = f" --dir {_shown(layout.root)}"
    yield Hint(f"fleetbus dev status{folder}", "the processes")
    yield Hint(f"fleetbus dev fault list{folder}", "what is broken on purpose; `add` breaks more")
    yield Hint(f"fleetbus dev down{folder}", "stop it")


def _shown(path: str | Path) -> str:
    """A path as the caller would type it."""
    place = Path(path)
    if place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    return shlex.quote(str(place))
