"""Declares the commands; what a command needs is imported when it runs."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus_cli.options import HubContext, HubKubeconfig, NatsUrl, RedisUrl, TableOrJson

plan_app = typer.Typer()
"""Without a name, so that its command becomes one of `fleetbus`."""


@plan_app.command()
def plan(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A MultiClusterResource on the hub.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--file", "-f", help="File with the desired MultiClusterResources; - for stdin."
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", help="Namespace of NAME, and of manifests that name none."
        ),
    ] = "default",
    output: TableOrJson = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
    nats_url: NatsUrl = None,
) -> None:
    """Show what the distributor would write, and why it waits.

    Every cluster is read live, and every write is sent as a server-side dry run. The status is 0 if
    nothing would be written, 2 if something would, and 1 after an error: also if the file is wrong,
    a cluster did not answer, or one would refuse an object.
    """
    from fleetbus_distributor.cli.plan import run_plan  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    try:
        status = run_plan(
            name,
            file,
            namespace,
            output=output,
            hub=hub,
            redis_url=redis_url,
            nats_url=nats_url,
        )
    except ConfigError as e:
        printer.note(f"fleetbus: {e}")
        status = 1  # 2, as elsewhere, would say that something would be written
    raise typer.Exit(status)
