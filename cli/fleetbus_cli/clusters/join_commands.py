"""Arguments of `fleetbus join` and `unjoin`."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Final

import typer

from fleetbus.errors import ConfigError
from fleetbus_cli.options import HubContext, HubKubeconfig

_CLUSTERS_NAMESPACE: Final = "fleetbus-clusters"
"""`leaving.NAMESPACE`, which costs an import."""
_Name = Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")]
_Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of fleetbus on the hub, for kubeconfigs and records of unjoined clusters;"
        " clusters.namespace of the chart.",
        envvar="FLEETBUS_CLUSTERS_NAMESPACE",
    ),
]
_Context = Annotated[
    str, typer.Option("--context", help="Context in that kubeconfig. Default: the current one.")
]
_BOOTSTRAP = "With --bootstrap"

_Label = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", help="Label of the cluster, as key=value; may be repeated."),
]
_Insecure = Annotated[
    bool, typer.Option("--insecure", help="Skip verification of the API server's certificate.")
]
_Http = Annotated[bool, typer.Option("--http", help="Allow plain http to the API server.")]
_NoCheck = Annotated[
    bool, typer.Option("--no-check", help="Join even if the cluster does not answer now.")
]
_Bootstrap = Annotated[
    bool,
    typer.Option(
        "--bootstrap",
        help="The kubeconfig is an administrator's: make limited accounts on the cluster and"
        " store only their kubeconfigs. Repeat it to repair or change them.",
    ),
]
_Watch = Annotated[
    list[str] | None,
    typer.Option(
        "--watch",
        help="Resource to watch, like apps/v1/deployments; may be repeated. Default: as before,"
        " at first all that the cluster serves, except Secrets and what changes all the time.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Write = Annotated[
    list[str] | None,
    typer.Option(
        "--write",
        help="Resource that the distributor and controllers may write; may be repeated."
        " Default: as before, at first none.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Impersonate = Annotated[
    list[str] | None,
    typer.Option(
        "--impersonate",
        metavar="NAMESPACE/NAME",
        help="ServiceAccount of the cluster whose rights a MultiClusterResource may use; may be"
        " repeated, and '' means none. Default: as before, at first none.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_ReadOnly = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Nothing may be written, and nobody impersonated, any more.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Pool = Annotated[
    bool | None,
    typer.Option(
        "--pool/--dedicated",
        help="Whether the pool watches the cluster, with the account that writes, or a watcher"
        " of its own, with one that only reads. Default: as before, at first dedicated.",
        show_default=False,
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Address of the API server for the hub. Default: that of the kubeconfig.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Lifetime = Annotated[
    str | None,
    typer.Option(
        "--lifetime",
        help="How long a token is valid; it is renewed after half of that. Default: 24h.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_ReleaseNamespace = Annotated[
    str | None,
    typer.Option(
        "--release-namespace",
        help="Namespace of the watchers on the hub, that of the release. Default: fleetbus.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="text|json|yaml",
        help="Output format. Default: text.",
        rich_help_panel=_BOOTSTRAP,
    ),
]


def join(
    name: _Name,
    file: Annotated[pathlib.Path, typer.Option("--file", "-f", help="Kubeconfig of the cluster.")],
    context: _Context = "",
    label: _Label = None,
    insecure: _Insecure = False,
    http: _Http = False,
    no_check: _NoCheck = False,
    bootstrap: _Bootstrap = False,
    watch: _Watch = None,
    write: _Write = None,
    impersonate: _Impersonate = None,
    read_only: _ReadOnly = False,
    pool: _Pool = None,
    server: _Server = None,
    lifetime: _Lifetime = None,
    release_namespace: _ReleaseNamespace = None,
    output: _Output = None,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: _Namespace = _CLUSTERS_NAMESPACE,
) -> None:
    """Add a cluster to the fleet."""
    bootstrap_options: dict[str, Any] = {
        "watch": watch,
        "write": write,
        "impersonate": impersonate,
        "read_only": read_only,
        "pool": pool,
        "server": server,
        "lifetime": lifetime,
        "release_namespace": release_namespace,
        "output": output,
    }
    shared: dict[str, Any] = {
        "context": context,
        "labels": label or [],
        "insecure": insecure,
        "http": http,
        "check": not no_check,
        "hub": (hub_kubeconfig, hub_context),
        "namespace": namespace,
    }
    if bootstrap:
        from fleetbus_cli.clusters.bootstrap import bootstrap_cluster  # noqa: PLC0415 -- import cost

        options = {
            option: value for option, value in bootstrap_options.items() if value is not None
        }
        raise typer.Exit(bootstrap_cluster(name, file, **shared, **options))
    for option, value in bootstrap_options.items():
        if value:
            raise ConfigError(f"--{option.replace('_', '-')} needs --bootstrap")
    from fleetbus_cli.clusters.join import join_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(join_cluster(name, file, **shared))


def unjoin(
    name: _Name,
    file: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Kubeconfig of an administrator of the cluster: also delete there what"
            " `join --bootstrap` made.",
        ),
    ] = None,
    context: _Context = "",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: _Namespace = _CLUSTERS_NAMESPACE,
) -> None:
    """Remove a cluster from the fleet; its objects stay there."""
    from fleetbus_cli.clusters.join import unjoin_cluster  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    admin = (file, context) if file else None
    raise typer.Exit(unjoin_cluster(name, hub=hub, namespace=namespace, admin=admin))
