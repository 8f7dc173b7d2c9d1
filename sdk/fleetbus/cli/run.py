"""`fleetbus run`: run reconcilers here, against any fleet."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated, Final

import typer

from fleetbus.cli.options import DevFolder, NatsUrl, RedisUrl

_CHILD: Final = "from fleetbus.cli.main import main; main()"


def run(
    modules: Annotated[
        list[str], typer.Argument(help="Python files or modules that define controllers.")
    ],
    kubeconfig: Annotated[
        list[pathlib.Path] | None,
        typer.Option(
            "--kubeconfig",
            help="Clusters: one per context of this file; may be repeated. Default:"
            " FLEETBUS_PROVIDERS, else the fleet started here, else KUBECONFIG.",
        ),
    ] = None,
    contexts: Annotated[
        str, typer.Option("--contexts", help="Only these contexts, separated by commas.")
    ] = "",
    reload: Annotated[
        bool,
        typer.Option(
            "--reload/--no-reload",
            help="Start again when one of these files, or one that they import, has changed.",
        ),
    ] = True,
    folder: DevFolder = None,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level", help="debug, info, warning or error.", envvar="FLEETBUS_LOG_LEVEL"
        ),
    ] = "info",
) -> None:
    """Run reconcilers here, against any fleet.

    NATS, Redis, the watchers and the projector must run: `fleetbus dev up` starts them all.
    """
    from fleetbus.cli import reload as reloading  # noqa: PLC0415 -- import cost

    if reload and not reloading.is_child():
        # The same command line: the child sees from its environment which of the two it is.
        command = [sys.executable, "-c", _CHILD, *sys.argv[1:]]
        raise typer.Exit(reloading.Reloader(command, modules).run())
    from fleetbus.cli.hosting import run_modules  # noqa: PLC0415 -- see the module's text

    code = run_modules(
        modules,
        kubeconfigs=kubeconfig or [],
        contexts=[name for name in contexts.split(",") if name],
        folder=folder,
        nats_url=nats_url,
        redis_url=redis_url,
        log_level=log_level,
    )
    raise typer.Exit(code)
