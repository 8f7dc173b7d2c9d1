"""`fleetbus clusters`: which clusters there are, and what has to be decided about one."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Show the clusters of the fleet, or decide about one.")


@app.callback(invoke_without_command=True)
def clusters(
    context: typer.Context,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    api_url: Annotated[
        str | None, typer.Option("--api-url", help="Address of the query API.")
    ] = None,
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
    nats_url: Annotated[str | None, typer.Option("--nats-url", help="Address of NATS.")] = None,
) -> None:
    """Consent that another cluster is behind a name now: what only the old one had is dropped."""
    from fleetbus.cli.consent import accept_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(accept_cluster(name, uid, nats_url))


@app.command()
def audit(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    nats_url: Annotated[str | None, typer.Option("--nats-url", help="Address of NATS.")] = None,
) -> None:
    """Compare what we know of a cluster with what its API server says, now."""
    from fleetbus.cli.audit import audit_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(audit_cluster(name, nats_url))
