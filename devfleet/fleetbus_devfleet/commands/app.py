"""The commands that devfleet adds to `fleetbus`: `dev up|down|status|fill|fault` and `demo`.

The command line imports this module to show its help, so what a command needs is imported when it
runs.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetbus_devfleet.commands.admin import ALL, folder_errors
from fleetbus_devfleet.commands.fault import fault
from fleetbus_devfleet.commands.fill import fill, fill_clusters
from fleetbus_devfleet.commands.options import (
    DEFAULT_FOLDER,
    EnvOutput,
    Folder,
    Output,
    OutputOption,
)
from fleetbus_devfleet.stack.plan import Layout, PlanError, fleet_of

if TYPE_CHECKING:
    from fleetbus_devfleet.stack.state import StackState

DEFAULT_CLUSTERS = 3
INTERRUPTED = 130

dev = typer.Typer(
    name="dev",
    help="Run a whole fleet on this machine, with emulated clusters.",
    no_args_is_help=True,
)
dev.add_typer(fault)
dev.command()(fill)
demo = typer.Typer(name="demo", invoke_without_command=True, subcommand_metavar="")


ClusterCount = Annotated[
    int | None,
    typer.Option(
        "--clusters",
        help="Number of emulated clusters, including the hub.",
        show_default=str(DEFAULT_CLUSTERS),
    ),
]
AgentCount = Annotated[
    int | None,
    typer.Option(
        "--agents",
        min=0,
        help="Number of member clusters, the last ones, that the hub calls through an agent in"
        " them: their API servers do not let it in.",
        show_default="0",
    ),
]
Record = Annotated[
    bool,
    typer.Option("--record", help="Write every committed write of each cluster to DIR/truth."),
]
Secrets = Annotated[
    bool,
    typer.Option(
        "--secrets",
        envvar="FLEETBUS_WATCHER_SECRETS",
        help="Watch Secrets, too: the names of their keys, never the values. A controller reads"
        " values from the cluster itself.",
    ),
]
Objects = Annotated[
    int, typer.Option("--objects", min=0, help="Realistic objects to fill each cluster with.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same objects.")]
ProgressInterval = Annotated[
    str | None,
    typer.Option(
        "--progress-interval",
        help="How often the clusters' stores report progress, like 10m on real servers: "
        "until then a quiet resource gets no bookmark. All the time if it is not given.",
    ),
]


FromCapture = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Emulate the clusters of a file of `fleetbus capture`, with all their objects.",
    ),
]


@dev.command()
def up(
    clusters: ClusterCount = None,
    agents: AgentCount = None,
    capture: FromCapture = None,
    folder: Folder = DEFAULT_FOLDER,
    record: Record = False,
    secrets: Secrets = False,
    objects: Objects = 0,
    seed: Seed = None,
    progress_interval: ProgressInterval = None,
) -> None:
    """Start a fleet and leave it running.

    If a fleet already runs, report it and the processes that are not ready.
    """
    from fleetbus_cli.mro_config import create_mro_config
    from fleetbus_devfleet.commands import lifecycle, report

    layout = Layout(root=folder.absolute())
    count = DEFAULT_CLUSTERS if clusters is None else clusters
    _check_counts(count, agents or 0)
    if seed is not None and not objects:
        raise typer.BadParameter("--seed chooses objects: say how many with --objects")
    interval = _read_interval(progress_interval)
    if capture is not None:
        _check_capture(capture, counts=(clusters, agents), objects=objects)
    with folder_errors(layout, report.print_failure):
        state = lifecycle.running_state(layout)
    if state is not None and state.phase == lifecycle.RUNNING:
        if capture is not None:
            report.print_failure("a fleet already runs; stop it with `dev down` first")
            raise typer.Exit(1)
        other = lifecycle.difference(
            state,
            clusters,
            agents=agents,
            record=record,
            secrets=secrets,
            progress_interval=interval,
        )
        _show_running(state, layout, other, objects=objects)
        return
    state = _start(
        layout,
        count,
        agents or 0,
        capture,
        record=record,
        secrets=secrets,
        progress_interval=interval,
    )
    create_mro_config(state.api_url)
    report.print_running(state, layout, title="The fleet runs")
    report.print_opened(layout)
    if objects:
        fill_clusters(ALL, {"objects": objects, "seed": seed or 0}, folder)


def _check_counts(clusters: int, agents: int) -> None:
    try:
        fleet_of(clusters, agents=agents)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from error


def _check_capture(capture: Path, *, counts: tuple[int | None, int | None], objects: int) -> None:
    """Check a capture before anything is started.

    Raises:
        CaptureError: it cannot be opened as a fleet.
    """
    from fleetbus_cli.capture.reading import Capture
    from fleetbus_devfleet.stack.captured_clusters import clusters_of

    if counts != (None, None) or objects:
        raise typer.BadParameter("--from has its own clusters and objects")
    clusters_of(Capture.open(capture))


def _start(
    layout: Layout,
    clusters: int,
    agents: int,
    capture: Path | None,
    *,
    record: bool,
    secrets: bool,
    progress_interval: timedelta | None,
) -> StackState:
    """Start the fleet, or end the command."""
    from fleetbus_devfleet.commands import lifecycle, report
    from fleetbus_devfleet.console import lines_console

    try:
        with folder_errors(layout, report.print_failure):
            return lifecycle.start(
                layout,
                clusters=clusters,
                agents=agents,
                capture=None if capture is None else capture.absolute(),
                record=record,
                secrets=secrets,
                progress_interval=progress_interval,
                console=lines_console(),
            )
    except lifecycle.DevError as error:
        report.print_failure(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        report.print_failure("interrupted; every process is stopped")
        raise typer.Exit(INTERRUPTED) from None


def _read_interval(text: str | None) -> timedelta | None:
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from fleetbus.process.settings import Duration

    try:
        interval = TypeAdapter(Duration).validate_python(text)
    except (ValidationError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is no time like 30s or 10m") from error
    if interval <= timedelta(0):
        raise typer.BadParameter(f"--progress-interval {text} is no time that passes")
    return interval


def _show_running(state: StackState, layout: Layout, other: str, *, objects: int) -> None:
    """Show the fleet that runs already, or end the command if its options differ."""
    from fleetbus_devfleet.commands import lifecycle, report

    if other:
        report.print_failure(f"the fleet already runs, {other}; stop it with `dev down` first")
        raise typer.Exit(1)
    if objects:
        fill_it = f"fleetbus dev fill --objects {objects}"
        report.print_failure(f"the fleet already runs; fill it with `{fill_it}`")
        raise typer.Exit(1)
    report.print_running(state, layout, title="The fleet already runs")
    report.print_problems(lifecycle.inspect(state))


@dev.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop the fleet; returns when no process of it is left."""
    from fleetbus_cli.mro_config import remove_mro_config
    from fleetbus_devfleet.commands import lifecycle, report

    layout = Layout(root=folder.absolute())
    with folder_errors(layout, report.print_failure):
        state = lifecycle.running_state(layout)
    if state is None:
        report.print_nothing_runs(layout)
        return
    try:
        with folder_errors(layout, report.print_failure):
            lifecycle.stop(state, layout)
    except lifecycle.DevError as error:
        report.print_failure(str(error))
        raise typer.Exit(1) from error
    remove_mro_config(state.api_url)
    report.print_stopped(state)


@dev.command()
def status(
    folder: Folder = DEFAULT_FOLDER,
    output: OutputOption = Output.table,
) -> None:
    """Show every process and whether it is ready.

    The exit status is 1 if a process is not ready, or if no fleet runs.
    """
    from fleetbus_devfleet.commands import lifecycle, report

    layout = Layout(root=folder.absolute())
    with folder_errors(layout, report.print_failure):
        state = lifecycle.running_state(layout)
    parts = [] if state is None else lifecycle.inspect(state)
    if output is Output.json:
        report.print_json(state, parts)
    elif state is None:
        report.print_nothing_runs(layout)
    else:
        report.print_status(state, parts)
    if state is None or any(part.problem for part in parts):
        raise typer.Exit(1)


@dev.command()
def env(
    folder: Folder = DEFAULT_FOLDER,
    output: Annotated[
        EnvOutput, typer.Option("--output", "-o", help="Lines for a shell, or JSON.")
    ] = EnvOutput.shell,
) -> None:
    """Print the settings of the fleet, for a shell.

    `eval "$(fleetbus dev env --dir DIR)"` makes the shell use it. They are valid until the fleet is
    started again, on other ports.
    """
    from fleetbus_devfleet.commands import lifecycle, report

    layout = Layout(root=folder.absolute())
    with folder_errors(layout, report.print_failure):
        state = lifecycle.running_state(layout)
    if state is None or state.phase != lifecycle.RUNNING:
        report.print_failure(f"no fleet runs in {layout.root}; start one with `dev up`")
        raise typer.Exit(1)
    report.print_settings(state, output)


@demo.callback()
def run_demo(
    clusters: Annotated[
        int, typer.Option("--clusters", min=3, help="Number of emulated clusters.")
    ] = 3,
    orders: Annotated[
        int, typer.Option("--orders", min=1, help="Number of changes to make and time.")
    ] = 200,
    instant: Annotated[
        bool, typer.Option("--instant", help="Pods start and stop at once: for pipelines.")
    ] = False,
) -> None:
    """Show a whole fleet in one minute, from start to stop."""
    from fleetbus_devfleet.demo.show import run

    raise typer.Exit(run(clusters=clusters, orders=orders, instant=instant))
