"""The commands of `fleetbus`.

Packages add commands of their own through the entry point group `fleetbus.commands`: devfleet
`dev`, `demo` and `rehearse`, the distributor `plan` and `rollout`. Only the command that is asked
for is imported, and all of them for `--help`: people wait for every module.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from fleetbus.errors import ConfigError, FleetbusError
from fleetbus.process import printer
from fleetbus_cli.complete_variable import COMPLETE
from fleetbus_cli.config.origins import note_origins
from fleetbus_cli.light_imports import spare_imports
from fleetbus_cli.light_parameters import spare_pydantic

if TYPE_CHECKING:
    app: typer.Typer

_GROUP: Final = "fleetbus.commands"
_COMMANDS: Final = {
    "get": "objects.commands:get",
    "describe": "objects.commands:describe",
    "api-resources": "objects.commands:api_resources",
    "capture": "capture.commands:capture",
    "completion": "completion:completion",
    "events": "events.commands:events",
    "explain": "events.commands:explain",
    "fuse": "deletions.commands:fuse",
    "diff": "history.commands:diff",
    "doctor": "doctor.commands:doctor",
    "join": "clusters.join_commands:join",
    "unjoin": "clusters.join_commands:unjoin",
    "new": "new:new",
    "orphans": "deletions.commands:orphans",
    "queue": "queue.commands:queue",
    "restore": "history.commands:restore",
    "timeline": "history.commands:timeline",
    "replay": "run.commands:replay",
    "run": "run.commands:run",
    "clusters": "clusters.commands:app",
    "config": "config.commands:app",
    "kubeconfig": "kubeconfig.commands:app",
}
"""Where each command of this package is."""
_RUN_CODE_OF_USERS: Final = ("run", "replay")
"""Which may need every part of every library."""


def _print_version(requested: bool) -> None:
    if requested:
        from fleetbus.process.release import check_parts, release  # noqa: PLC0415 -- import cost

        printer.line(f"fleetbus {release()}")
        check_parts()
        raise typer.Exit


def _global_options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print the source of each fleet address on stderr."),
    ] = False,
) -> None:
    """Run Kubernetes controllers across many clusters, over a message bus."""
    note_origins(verbose=verbose)


def _build(names: Iterable[str]) -> typer.Typer:
    """Build the command line with some of our commands."""
    spare_pydantic()
    command_line = typer.Typer(
        name="fleetbus",
        help="Run Kubernetes controllers across many clusters, over a message bus.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing rich would double the time of --help
    )
    command_line.callback()(_global_options)
    for name in names:
        module, _, attribute = _COMMANDS[name].partition(":")
        command: Any = getattr(import_module(f"fleetbus_cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            command_line.add_typer(command, name=name)
        else:
            command_line.command(name)(command)
    return command_line


@cache
def _whole() -> typer.Typer:
    return _build(_COMMANDS)


def __getattr__(name: str) -> typer.Typer:
    """`app`, with every command of this package."""
    if name != "app":
        raise AttributeError(name)
    return _whole()


_PACKAGES: Final = {
    "demo": "fleetbus[dev]",
    "dev": "fleetbus[dev]",
    "plan": "fleetbus-distributor",
    "rehearse": "fleetbus[dev]",
    "rollout": "fleetbus-distributor",
}
"""The distributions to install for commands that other packages bring."""


def _check_installed(word: str, commands: Collection[str]) -> None:
    package = _PACKAGES.get(word)
    if package and word not in commands:
        raise ConfigError(f"`{word}` is not installed: pip install '{package}'")


def entry_points(*, group: str) -> Any:
    """The entry points of all packages; reading them imports a part of the standard library."""
    from importlib import metadata  # noqa: PLC0415 -- import cost

    return metadata.entry_points(group=group)


def _find_command_line(word: str) -> typer.Typer:
    """Build the command line that has one command, or all of them for help and for typing errors.

    Raises:
        ConfigError: the package that brings the command is not installed.
    """
    if word not in _RUN_CODE_OF_USERS:
        spare_imports()
    if word in _COMMANDS and COMPLETE not in os.environ:
        return _build([word])
    points = entry_points(group=_GROUP)
    _check_installed(word, points.names)
    is_plugin = word in points.names and COMPLETE not in os.environ
    command_line = _build(() if is_plugin else _COMMANDS)
    for point in sorted(points, key=lambda p: p.name):
        if point.name == word or not is_plugin:
            command_line.add_typer(point.load())
    return command_line


def run_command_line() -> None:
    """Run the command line.

    Bad input prints one line and exits with status 2, or 1 if it names something unknown.
    """
    if COMPLETE in os.environ:
        from fleetbus_cli.completion import answer_shells  # noqa: PLC0415 -- import cost

        answer_shells()
    try:
        word = next((word for word in sys.argv[1:] if word[:1] != "-"), "")
        status = _find_command_line(word)(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except typer.TyperException as e:
        # Click would print letters that a terminal obeys as they are (rule S11).
        usage = io.StringIO()
        cast("Any", e).show(usage)
        printer.note_block(usage.getvalue())
        sys.exit(e.exit_code)
    except typer.Abort:
        printer.note("Aborted!")
        sys.exit(1)
    except FleetbusError as e:
        from fleetbus_cli.unknown import exit_status  # noqa: PLC0415

        printer.note(f"fleetbus: {e}")
        sys.exit(exit_status(e))
