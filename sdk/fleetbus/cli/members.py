"""`fleetbus join` and `fleetbus unjoin`: who is in the fleet, written on the hub."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.cli.options import HubContext, HubKubeconfig

_Name = Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")]
_Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Where fleetbus lives on the hub.")
]


def join(
    name: _Name,
    file: Annotated[pathlib.Path, typer.Option("--file", "-f", help="The cluster's kubeconfig.")],
    context: Annotated[
        str, typer.Option("--context", help="Context in that file; default: the current one.")
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="key=value; may be repeated.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not verify the API server's certificate.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Allow plain http to the API server.")
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Join also if the cluster does not answer now.")
    ] = False,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: _Namespace = "fleetbus-system",
) -> None:
    """Make a cluster a member of the fleet."""
    from fleetbus.cli.hub import join_cluster  # noqa: PLC0415 -- import cost

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
    """Let a cluster leave the fleet; its objects stay where they are, no longer managed."""
    from fleetbus.cli.hub import unjoin_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(unjoin_cluster(name, hub=(hub_kubeconfig, hub_context), namespace=namespace))
