"""`fleetbus clusters`: which clusters there are, and what has to be decided about one."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import ApiUrl, NatsUrl

app = typer.Typer(help="Show the clusters of the fleet, or decide about one.")


@app.callback(invoke_without_command=True)
def clusters(
    context: typer.Context,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    api_url: ApiUrl = None,
) -> None:
    """Show the clusters of the fleet and how fresh our view of each is."""
    if context.invoked_subcommand is not None:
        return
    from fleetbus.cli.cluster_list import show_clusters  # noqa: PLC0415 -- import cost

    raise typer.Exit(show_clusters(output, api_url))


@app.command()
def accept(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    uid: Annotated[
        str,
        typer.Option(
            "--uid",
            help="UID of its namespace kube-system; default: that of the cluster that answers now.",
        ),
    ] = "",
    nats_url: NatsUrl = None,
) -> None:
    """Consent that another cluster is behind a name now: what only the old one had is dropped."""
    from fleetbus.cli.consent import accept_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(accept_cluster(name, uid, nats_url))


@app.command()
def audit(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    nats_url: NatsUrl = None,
) -> None:
    """Compare what we know of a cluster with what its API server says, now."""
    from fleetbus.cli.audit import audit_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(audit_cluster(name, nats_url))
