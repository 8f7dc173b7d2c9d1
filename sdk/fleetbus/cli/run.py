"""`fleetbus run`: run reconcilers here, against any fleet."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.cli.options import NatsUrl, RedisUrl


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
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run reconcilers here, against any fleet.

    NATS, Redis, the watchers and the projector must run: `fleetbus dev up` starts them all.
    """
    from fleetbus.cli.hosting import run_modules  # noqa: PLC0415 -- see the module's text

    code = run_modules(
        modules,
        kubeconfigs=kubeconfig or [],
        contexts=[name for name in contexts.split(",") if name],
        nats_url=nats_url,
        redis_url=redis_url,
        log_level=log_level,
    )
    raise typer.Exit(code)
