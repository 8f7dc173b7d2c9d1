"""`fleetbus run`: run reconcilers here, against any fleet."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated, Final

import typer

from fleetbus.cli.options import DevFolder, NatsUrl, RedisUrl, output_option

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
    from fleetbus.cli.run import reload as reloading  # noqa: PLC0415 -- import cost

    if reload and not reloading.is_child():
        # The same command line: the child sees from its environment which of the two it is.
        command = [sys.executable, "-c", _CHILD, *sys.argv[1:]]
        raise typer.Exit(reloading.Reloader(command, modules).run())
    from fleetbus.cli.run.run import run_modules  # noqa: PLC0415 -- see the module's text

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


def replay(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE.jsonl]... MODULE...",
            help="Recordings, as `fleetbus events -o json` writes them (- for standard input),"
            " and Python files or modules that define controllers.",
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            "--since", help="Replay what the stream has since so long ago, like 10m or 2h."
        ),
    ] = "",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="NAME[:LABEL=VALUE,…]",
            help="A cluster that the recording does not show, or the labels of one; repeatable.",
        ),
    ] = None,
    hub: Annotated[str, typer.Option("--hub", help="The name of the hub.")] = "",
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            help="A resource that the recording may lack, so that it counts as empty; repeatable.",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Send the writes; without it they are only printed.")
    ] = False,
    kubeconfig: Annotated[
        list[pathlib.Path] | None,
        typer.Option("--kubeconfig", help="With --live: the clusters, as in `fleetbus run`."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="An empty Redis or Valkey for the snapshot of the replay; by default one is"
            " started for it.",
        ),
    ] = "",
    output: Annotated[str, output_option("diff", "json")] = "diff",
    nats_url: NatsUrl = None,
) -> None:
    """Drive reconcilers with recorded events and print the writes they would do.

    The replay has a snapshot and queues of its own; reads are answered from what was recorded.
    """
    from fleetbus.cli.run.replay import ReplayOptions, run_replay  # noqa: PLC0415 -- import cost

    options = ReplayOptions.read(
        names,
        since=since,
        clusters=cluster or [],
        hub=hub,
        resources=resource or [],
        live=live,
        kubeconfigs=kubeconfig or [],
        store=store,
        output=output,
        nats_url=nats_url,
    )
    raise typer.Exit(run_replay(options))
