"""`fleetbus events`: what happens in the fleet, from the stream itself."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import NatsUrl


def events(
    resource: Annotated[
        str,
        typer.Argument(
            help="Like pods, po or apps/v1/deployments; of a custom resource the plural name."
        ),
    ] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Only this cluster.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    name: Annotated[str, typer.Option("--name", help="Only objects of this name.")] = "",
    verb: Annotated[
        str, typer.Option("--verb", help="Only added, modified, deleted or listed.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Start so long ago, like 90s, 10m, 2h, 1d; default: 10m, with --follow now.",
        ),
    ] = "",
    output: Annotated[
        str, typer.Option("--output", "-o", help="table or json (one event a line).")
    ] = "table",
    nats_url: NatsUrl = None,
) -> None:
    """Show the events of the fleet: the last ten minutes, or live with --follow."""
    from fleetbus.cli.event_stream import Wanted, show_events  # noqa: PLC0415 -- import cost

    wanted = Wanted.read(
        resource=resource,
        cluster=cluster,
        namespace=namespace,
        name=name,
        verb=verb,
        since=since or ("" if follow else "10m"),
        follow=follow,
        output=output,
    )
    raise typer.Exit(show_events(wanted, nats_url))
