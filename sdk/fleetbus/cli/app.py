"""The commands of `fleetbus`.

Everything a command needs is imported when it runs, so that `--help` stays instant; devfleet adds
`dev` and `demo` through the entry point group `fleetbus.commands`.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from fleetbus.cli.clusters import commands as clusters
from fleetbus.cli.deletions import commands as deletions
from fleetbus.cli.events import commands as events
from fleetbus.cli.new import new
from fleetbus.cli.objects import commands as objects
from fleetbus.cli.queue import commands as queue
from fleetbus.cli.run import commands as run
from fleetbus.cli.unknown import exit_status
from fleetbus.errors import FleetbusError

app = typer.Typer(
    name="fleetbus",
    help="Kubernetes controllers over many clusters, through a message bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
)
app.command()(objects.get)
app.command()(objects.describe)
app.command()(events.events)
app.command()(events.explain)
app.command()(deletions.fuse)
app.command()(clusters.join)
app.command()(clusters.unjoin)
app.command()(new)
app.command()(deletions.orphans)
app.command()(queue.queue)
app.command()(run.replay)
app.command()(run.run)
app.add_typer(clusters.app, name="clusters")


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"fleetbus {version('fleetbus')}")
        raise typer.Exit


@app.callback()
def of_all_commands(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Tell the version and end."
        ),
    ] = False,
) -> None:
    """Kubernetes controllers over many clusters, through a message bus."""


def run_command_line() -> None:
    """Run the command line; bad input ends with one message and exit status 2.

    What was named and is not here ends with status 1.
    """
    for point in sorted(entry_points(group="fleetbus.commands"), key=lambda p: p.name):
        app.add_typer(point.load())
    try:
        app()
    except FleetbusError as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        sys.exit(exit_status(e))
