"""Arguments of `fleetbus clusters`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fleetbus_cli.completion import complete_clusters
from fleetbus_cli.options import (
    CLUSTERS_NAMESPACE,
    ApiCaFile,
    ApiTokenFile,
    ApiTokenText,
    ApiUrl,
    ClustersNamespace,
    HubContext,
    HubKubeconfig,
    NatsUrl,
    TableOrJson,
    output_option,
)
from fleetbus_cli.target import ApiFlags


class _Group(TyperGroup):
    """`clusters NAME` is `clusters show NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand."""
        is_name = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["show", *args] if is_name else args)


app = typer.Typer(
    cls=_Group,
    help="List the clusters of the fleet; show, accept or audit one.",
)


@app.callback(invoke_without_command=True)
def clusters(
    context: typer.Context,
    output: TableOrJson = "table",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """List the clusters of the fleet, and how fresh the snapshot of each is."""
    if context.invoked_subcommand is not None:
        return
    from fleetbus_cli.clusters.clusters import show_clusters  # noqa: PLC0415 -- import cost

    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(show_clusters(output, api))


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(help="Name of the cluster.", autocompletion=complete_clusters),
    ],
    output: Annotated[str, output_option("table", "json")] = "table",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show a cluster, and how fresh the snapshot of each of its resources is.

    `fleetbus clusters NAME` does the same.
    """
    from fleetbus_cli.clusters.clusters import show_cluster  # noqa: PLC0415 -- import cost

    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(show_cluster(name, output, api))


@app.command()
def accept(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    uid: Annotated[
        str,
        typer.Option(
            "--uid",
            help="UID of the cluster's kube-system namespace. Default: that of the cluster that"
            " answers now.",
        ),
    ] = "",
    nats_url: NatsUrl = None,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: ClustersNamespace = CLUSTERS_NAMESPACE,
) -> None:
    """Accept an agent that waits for it, or that a name now belongs to another cluster.

    Objects that only the old cluster had are then dropped from the snapshot.
    """
    from fleetbus_cli.clusters.accept import accept_cluster  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(accept_cluster(name, uid, nats_url, hub=hub, namespace=namespace))


@app.command()
def audit(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    nats_url: NatsUrl = None,
) -> None:
    """Compare the snapshot of a cluster with its API server now."""
    from fleetbus_cli.clusters.audit import audit_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(audit_cluster(name, nats_url))


@app.command("nats-config")
def nats_config() -> None:
    """Print what a NATS of your own needs in its configuration for agents.

    The NATS of the chart has it. Nothing is asked and nothing is changed.
    """
    from fleetbus_cli.clusters.nats_config import print_nats_config  # noqa: PLC0415 -- import cost

    print_nats_config()
