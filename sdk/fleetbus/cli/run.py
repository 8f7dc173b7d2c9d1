"""`fleetbus run`: run reconcilers here, against any fleet."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer


def run(
    modules: Annotated[
        list[str], typer.Argument(help="Python files or modules that define controllers.")
    ],
    kubeconfig: Annotated[
        list[pathlib.Path] | None,
        typer.Option("--kubeconfig", help="Clusters: one per context of this file."),
    ] = None,
    contexts: Annotated[
        str, typer.Option("--contexts", help="Only these contexts, separated by commas.")
    ] = "",
    nats_url: Annotated[str | None, typer.Option("--nats-url", help="Address of NATS.")] = None,
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", help="Address of Redis or Valkey.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level")] = "info",
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
