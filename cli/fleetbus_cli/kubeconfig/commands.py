"""Arguments of `fleetbus kubeconfig`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus_cli.options import ApiCaFile, ApiTokenFile, ApiUrl
from fleetbus_cli.target import ApiFlags

app = typer.Typer(help="Write contexts with which kubectl reads the fleet.")


@app.callback(invoke_without_command=True)
def kubeconfig(
    context: typer.Context,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Write the contexts into the kubeconfig (the first of KUBECONFIG, else"
            " ~/.kube/config) instead of printing them.",
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Name of the context of the fleet, and prefix of the contexts of clusters.",
        ),
    ] = "fleet",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="Besides the fleet, only this cluster; may be repeated. Default: all clusters"
            " that you may list.",
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the contexts.")
    ] = "",
    api_url: ApiUrl = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Write contexts with which kubectl reads the fleet: one of all clusters, and one of each.

    The token is not among them: kubectl reads its file, or asks `fleetbus` for it.
    """
    if context.invoked_subcommand is not None:
        return
    from fleetbus_cli.kubeconfig.contexts import Contexts, write_contexts  # noqa: PLC0415 -- cost

    contexts = Contexts(name=name, clusters=cluster, namespace=namespace)
    flags = ApiFlags(url=api_url, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(write_contexts(contexts, flags, merge=merge))


@app.command()
def credential(
    api_url: ApiUrl = None,
) -> None:
    """Print the token for the query API in the format of a kubectl credential plugin."""
    from fleetbus_cli.kubeconfig.credential import print_credential  # noqa: PLC0415 -- import cost

    raise typer.Exit(print_credential(ApiFlags(url=api_url)))
