"""Arguments of `fleetbus join` and `unjoin`."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from fleetbus.errors import ConfigError
from fleetbus_cli.options import (
    CLUSTERS_NAMESPACE,
    ClustersNamespace,
    HubContext,
    HubKubeconfig,
)

_Name = Annotated[str, typer.Argument(help="Name of the cluster in the fleet.")]
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
        help="Use the kubeconfig of an administrator to create limited accounts on the cluster,"
        " and store only their kubeconfigs. Run it again to repair or change the accounts.",
    ),
]
_Watch = Annotated[
    list[str] | None,
    typer.Option(
        "--watch",
        help="Resource to watch, like apps/v1/deployments; may be repeated. Default: unchanged; on"
        " first join everything that the cluster serves, except Secrets and types that change all"
        " the time.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Write = Annotated[
    list[str] | None,
    typer.Option(
        "--write",
        help="Resource that the distributor and controllers may write; may be repeated. Default:"
        " unchanged; none on first join.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Impersonate = Annotated[
    list[str] | None,
    typer.Option(
        "--impersonate",
        metavar="NAMESPACE/NAME",
        help="ServiceAccount of the cluster that a MultiClusterResource may impersonate; may be"
        " repeated, and '' means none. Default: unchanged; none on first join.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_ReadOnly = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Revoke all write and impersonation rights.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Pool = Annotated[
    bool | None,
    typer.Option(
        "--pool/--dedicated",
        help="Watch the cluster from the pool, with the account that also writes, or from a"
        " dedicated watcher, with a read-only account. Default: unchanged; dedicated on first"
        " join.",
        show_default=False,
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Address under which the hub reaches the API server. Default: the one in the"
        " kubeconfig.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_Lifetime = Annotated[
    str | None,
    typer.Option(
        "--lifetime",
        help="Lifetime of the tokens; they are renewed after half of it. Default: 24h.",
        rich_help_panel=_BOOTSTRAP,
    ),
]
_ReleaseNamespace = Annotated[
    str | None,
    typer.Option(
        "--release-namespace",
        help="Namespace of the release on the hub, where the watchers run. Default: fleetbus.",
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


_AGENT = "With --agent"
_Agent = Annotated[
    bool,
    typer.Option(
        "--agent",
        help="The hub cannot reach the cluster: print a manifest whose agent connects to the hub."
        " Run it again for another one-time secret, or to change a cluster from direct access.",
    ),
]
_Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        help="How long the agent may take to register, like 1h. Default: 24h.",
        rich_help_panel=_AGENT,
    ),
]
_Helm = Annotated[
    bool,
    typer.Option(
        "--helm",
        help="Print a command for helm and the chart fleetbus-agent instead.",
        rich_help_panel=_AGENT,
    ),
]
_Nats = Annotated[
    str | None,
    typer.Option(
        "--nats",
        help="Address under which the cluster reaches NATS. Default: agents.url of the chart.",
        rich_help_panel=_AGENT,
    ),
]
_NatsCa = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--nats-ca",
        help="CA of its certificate. Default: that of the chart.",
        rich_help_panel=_AGENT,
    ),
]
_Rights = Annotated[
    str | None,
    typer.Option(
        "--rights",
        metavar="read-only|namespaces|full",
        help="What the manifest lets the hub do in the cluster. Default: read-only.",
        rich_help_panel=_AGENT,
    ),
]
_Writable = Annotated[
    list[str] | None,
    typer.Option(
        "--writable",
        metavar="NAMESPACE",
        help="Namespace of the cluster that the hub may write to; may be repeated.",
        rich_help_panel=_AGENT,
    ),
]


def join(
    name: _Name,
    file: Annotated[
        pathlib.Path | None,
        typer.Option("--file", "-f", help="Kubeconfig of the cluster; not with --agent."),
    ] = None,
    context: _Context = "",
    label: _Label = None,
    agent: _Agent = False,
    expires: _Expires = None,
    helm: _Helm = False,
    nats: _Nats = None,
    nats_ca: _NatsCa = None,
    rights: _Rights = None,
    writable: _Writable = None,
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
    namespace: ClustersNamespace = CLUSTERS_NAMESPACE,
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
    hub = (hub_kubeconfig, hub_context)
    agent_options: dict[str, Any] = {
        "expires": expires,
        "helm": helm,
        "nats": nats,
        "nats_ca": nats_ca,
        "rights": rights,
        "writable": writable,
    }
    if agent:
        direct = {"file": file, "context": context, "insecure": insecure, "http": http}
        direct |= {"no_check": no_check, "bootstrap": bootstrap, **bootstrap_options}
        _refuse(direct, "cannot be used with --agent")
        from fleetbus_cli.clusters.join_agent import (  # noqa: PLC0415 -- import cost
            join_with_agent,
        )

        chosen = {key: value for key, value in agent_options.items() if value}
        status = join_with_agent(name, labels=label or [], hub=hub, namespace=namespace, **chosen)
        raise typer.Exit(status)
    _refuse(agent_options, "needs --agent")
    if file is None:
        raise ConfigError(
            "--file, its kubeconfig, is needed; or --agent, if the hub cannot reach the cluster"
        )
    shared: dict[str, Any] = {
        "context": context,
        "labels": label or [],
        "insecure": insecure,
        "http": http,
        "check": not no_check,
        "hub": hub,
        "namespace": namespace,
    }
    if bootstrap:
        from fleetbus_cli.clusters.bootstrap import bootstrap_cluster  # noqa: PLC0415 -- import cost

        options = {
            option: value for option, value in bootstrap_options.items() if value is not None
        }
        raise typer.Exit(bootstrap_cluster(name, file, **shared, **options))
    _refuse(bootstrap_options, "needs --bootstrap")
    from fleetbus_cli.clusters.join import join_cluster  # noqa: PLC0415 -- import cost

    raise typer.Exit(join_cluster(name, file, **shared))


def _refuse(options: dict[str, Any], why: str) -> None:
    """Refuse the first option that is given."""
    for option, value in options.items():
        if value:
            raise ConfigError(f"--{option.replace('_', '-')} {why}")


def unjoin(
    name: _Name,
    file: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Kubeconfig of an administrator of the cluster: also delete the objects that"
            " `join --bootstrap` created there.",
        ),
    ] = None,
    context: _Context = "",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    namespace: ClustersNamespace = CLUSTERS_NAMESPACE,
) -> None:
    """Remove a cluster from the fleet; its objects stay there."""
    from fleetbus_cli.clusters.join import unjoin_cluster  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    admin = (file, context) if file else None
    raise typer.Exit(unjoin_cluster(name, hub=hub, namespace=namespace, admin=admin))
