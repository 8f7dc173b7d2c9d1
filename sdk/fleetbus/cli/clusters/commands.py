"""Arguments of `fleetbus clusters`, `join` and `unjoin`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.cli.options import (
    ApiCaFile,
    ApiTokenFile,
    ApiTokenText,
    ApiUrl,
    HubContext,
    HubKubeconfig,
    NatsUrl,
    TableOrJson,
)
from fleetbus.cli.target import ApiFlags

app = typer.Typer(help="List the clusters of the fleet, or accept or audit one.")


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
    from fleetbus.cli.clusters.clusters import show_clusters  # noqa: PLC0415 -- import cost

    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(show_clusters(output, api))


@app.command()
def accept(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    uid: Annotated[
        str,
        typer.Option(
            "--uid",
            help="UID of its kube-system namespace. Default: that of the cluster that answers now.",
        ),
    ] = "",
    nats_url: NatsUrl = None,
) -> None:
    """Accept that a name now belongs to another cluster.

    What only the old one had is dropped.
    """
    from fleetbus.cli.clusters.accept import accept_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(accept_cluster(name, uid, nats_url))


@app.command()
def audit(
    name: Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")],
    nats_url: NatsUrl = None,
) -> None:
    """Compare the snapshot of a cluster with its API server now."""
    from fleetbus.cli.clusters.audit import audit_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(audit_cluster(name, nats_url))


_Name = Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")]
_Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace of fleetbus on the hub.")
]


def join(
    name: _Name,
    file: Annotated[pathlib.Path, typer.Option("--file", "-f", help="Kubeconfig of the cluster.")],
    context: Annotated[
        str, typer.Option("--context", help="Context in that kubeconfig. Default: the current one.")
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", help="Label of the cluster, as key=value; may be repeated."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Skip verification of the API server's certificate.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Allow plain http to the API server.")
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Join even if the cluster does not answer now.")
    ] = False,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: _Namespace = "fleetbus-system",
) -> None:
    """Add a cluster to the fleet."""
    from fleetbus.cli.clusters.join import join_cluster  # noqa: PLC0415 -- import cost

    status = join_cluster(
        name,
        file,
        context=context,
        labels=label or [],
        insecure=insecure,
        http=http,
        check=not no_check,
        hub=(hub_kubeconfig, hub_context),
        namespace=namespace,
    )
    raise typer.Exit(status)


def unjoin(
    name: _Name,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: _Namespace = "fleetbus-system",
) -> None:
    """Remove a cluster from the fleet; its objects stay there."""
    from fleetbus.cli.clusters.join import unjoin_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(unjoin_cluster(name, hub=(hub_kubeconfig, hub_context), namespace=namespace))
