"""Arguments of `fleetbus run` and `replay`."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer

from fleetbus_cli.options import DevFolder, NatsUrl, RedisUrl, output_option

_Modules = Annotated[
    list[str], typer.Argument(help="Python files or modules that define controllers.")
]
_Kubeconfigs = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--kubeconfig",
        help="Kubeconfig with one cluster per context; may be repeated. Default:"
        " FLEETBUS_PROVIDERS, else the dev fleet of this folder, else KUBECONFIG.",
    ),
]
_Contexts = Annotated[
    str, typer.Option("--contexts", help="Only these contexts, separated by commas.")
]
_Reload = Annotated[
    bool,
    typer.Option(
        "--reload/--no-reload",
        help="Restart when one of these files, or a file they import, changes.",
    ),
]
_Projector = Annotated[
    bool,
    typer.Option(
        "--projector/--no-projector",
        help="Run the projector, too, if no process of the fleet does.",
    ),
]
_LogLevel = Annotated[
    str,
    typer.Option("--log-level", help="debug, info, warning or error.", envvar="FLEETBUS_LOG_LEVEL"),
]
_FilesAndModules = Annotated[
    list[str],
    typer.Argument(
        metavar="[FILE.jsonl]... MODULE...",
        help="Recordings, as `fleetbus events -o json` writes them (- for standard input),"
        " and Python files or modules that define controllers.",
    ),
]
_Since = Annotated[
    str, typer.Option("--since", help="Replay this last period of the stream, like 10m or 2h.")
]
_From = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="File of `fleetbus capture`: replay its objects, then its events.",
    ),
]
_Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="NAME[:LABEL=VALUE,…]",
        help="Add a cluster that the recording lacks, or set its labels; may be repeated.",
    ),
]
_Hub = Annotated[str, typer.Option("--hub", help="Name of the hub.")]
_Resources = Annotated[
    list[str] | None,
    typer.Option(
        "--resource",
        help="A resource without recorded events, to be treated as empty; may be repeated.",
    ),
]
_Live = Annotated[
    bool, typer.Option("--live", help="Send the writes instead of only printing them.")
]
_LiveKubeconfigs = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--kubeconfig", help="With --live: kubeconfig of the clusters, as for `fleetbus run`."
    ),
]
_Store = Annotated[
    str,
    typer.Option(
        "--store",
        help="Empty Redis or Valkey for the snapshot of the replay. Default: start one.",
    ),
]


def run(
    modules: _Modules,
    kubeconfig: _Kubeconfigs = None,
    contexts: _Contexts = "",
    reload: _Reload = True,
    folder: DevFolder = None,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
    projector: _Projector = True,
    log_level: _LogLevel = "info",
) -> None:
    """Run controllers on this machine, against any fleet.

    NATS, Redis and the watchers must be running: `fleetbus dev up` starts them all.
    """
    from fleetbus_cli.run import reload as reloading  # noqa: PLC0415 -- import cost

    if reload and not reloading.is_child():
        # Same command line: the child knows its role from the environment.
        command = [sys.executable, "-m", "fleetbus_cli.main", *sys.argv[1:]]
        raise typer.Exit(reloading.Reloader(command, modules).run())
    from fleetbus_cli.run.run import run_modules  # noqa: PLC0415 -- import cost

    code = run_modules(
        modules,
        kubeconfigs=kubeconfig or [],
        contexts=[name for name in contexts.split(",") if name],
        folder=folder,
        nats_url=nats_url,
        redis_url=redis_url,
        may_project=projector,
        log_level=log_level,
    )
    raise typer.Exit(code)


def replay(
    names: _FilesAndModules,
    since: _Since = "",
    capture: _From = None,
    cluster: _Clusters = None,
    hub: _Hub = "",
    resource: _Resources = None,
    live: _Live = False,
    kubeconfig: _LiveKubeconfigs = None,
    store: _Store = "",
    output: Annotated[str, output_option("diff", "json")] = "diff",
    nats_url: NatsUrl = None,
) -> None:
    """Run controllers on recorded events and print their writes.

    A replay has its own snapshot and queues; reads are served from the recording.
    """
    from fleetbus_cli.run.replay import ReplayOptions, run_replay  # noqa: PLC0415 -- import cost

    options = ReplayOptions.read(
        names,
        since=since,
        capture=capture,
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
