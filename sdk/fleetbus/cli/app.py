"""The commands of `fleetbus`.

Packages add commands of their own through the entry point group `fleetbus.commands`: devfleet `dev`
and `demo`, the distributor `plan` and `rollout`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.metadata import entry_points, version
from typing import Annotated, Final

import typer

from fleetbus.cli import completion
from fleetbus.cli.capture import commands as captures
from fleetbus.cli.clusters import commands as clusters
from fleetbus.cli.clusters import join_commands as members
from fleetbus.cli.config import commands as config
from fleetbus.cli.config.origins import note_origins
from fleetbus.cli.deletions import commands as deletions
from fleetbus.cli.doctor import commands as doctor
from fleetbus.cli.events import commands as events
from fleetbus.cli.history import commands as history
from fleetbus.cli.kubeconfig import commands as kubeconfig
from fleetbus.cli.new import new
from fleetbus.cli.objects import commands as objects
from fleetbus.cli.queue import commands as queue
from fleetbus.cli.run import commands as run
from fleetbus.cli.unknown import exit_status
from fleetbus.errors import ConfigError, FleetbusError

app = typer.Typer(
    name="fleetbus",
    help="Run Kubernetes controllers across many clusters, over a message bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
)
app.command()(objects.get)
app.command()(objects.describe)
app.command()(objects.api_resources)
app.command()(captures.capture)
app.command()(completion.completion)
app.command()(events.events)
app.command()(events.explain)
app.command()(deletions.fuse)
app.command()(history.diff)
app.command()(doctor.doctor)
app.command()(members.join)
app.command()(members.unjoin)
app.command()(new)
app.command()(deletions.orphans)
app.command()(queue.queue)
app.command()(history.restore)
app.command()(history.timeline)
app.command()(run.replay)
app.command()(run.run)
app.add_typer(clusters.app, name="clusters")
app.add_typer(config.app, name="config")
app.add_typer(kubeconfig.app, name="kubeconfig")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"fleetbus {version('fleetbus')}")
        raise typer.Exit


@app.callback()
def global_options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say on stderr where the addresses of the fleet are from."
        ),
    ] = False,
) -> None:
    """Run Kubernetes controllers across many clusters, over a message bus."""
    note_origins(verbose=verbose)


_PACKAGES: Final = {
    "demo": "fleetbus-devfleet",
    "dev": "fleetbus-devfleet",
    "plan": "fleetbus-distributor",
    "rehearse": "fleetbus-devfleet",
    "rollout": "fleetbus-distributor",
}
"""Commands that other packages bring."""


def _check_installed(commands: Collection[str]) -> None:
    wanted = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    package = _PACKAGES.get(wanted)
    if package and wanted not in commands:
        raise ConfigError(f"the package {package} brings `{wanted}`: pip install {package}")


def run_command_line() -> None:
    """Run the command line.

    Bad input prints one line and exits with status 2, or 1 if it names something unknown.
    """
    completion.answer_shells()
    points = entry_points(group="fleetbus.commands")
    for point in sorted(points, key=lambda p: p.name):
        app.add_typer(point.load())
    try:
        _check_installed(points.names)
        app()
    except FleetbusError as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        sys.exit(exit_status(e))
