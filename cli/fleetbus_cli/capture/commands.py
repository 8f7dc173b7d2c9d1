"""Arguments of `fleetbus capture`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus_cli.options import NatsUrl, RedisUrl


def capture(
    out: Annotated[
        pathlib.Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write, like fleet.capture.gz."
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Include the events of this last period, like 10m, 2h or 1d; 0s for none.",
        ),
    ] = "30m",
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="NAME", help="Only this cluster; may be repeated."),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            "-r",
            metavar="RESOURCE",
            help="Only this resource, like pods, po or apps/v1/deployments; may be repeated."
            " Definitions and namespaces are always included.",
        ),
    ] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            "--redact",
            metavar="[GROUP/PLURAL:]PATH",
            help="Redact the values at this path, like core/configmaps:data[password] or"
            " spec.containers[*].args; may be repeated.",
        ),
    ] = None,
    redact_values: Annotated[
        bool, typer.Option("--redact-values", help="Also redact the data of ConfigMaps.")
    ] = False,
    keep_values: Annotated[
        bool,
        typer.Option(
            "--keep-values",
            help="Keep the values of environment variables and long annotations; values of Secrets"
            " are never captured.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Capture the fleet's objects and latest events in a file.

    The file is meant to be shared: values of Secrets and of environment variables are redacted.
    `fleetbus replay`, `fleetbus dev up --from` and `fleetbus rehearse --from` open it.
    """
    from fleetbus_cli.capture.capture import CaptureOptions, run_capture  # noqa: PLC0415 -- import cost

    options = CaptureOptions.read(
        out=out,
        since=since,
        clusters=cluster or [],
        resources=resource or [],
        redact=redact or [],
        redact_values=redact_values,
        keep_values=keep_values,
        force=force,
    )
    raise typer.Exit(run_capture(options, nats_url=nats_url, redis_url=redis_url))
