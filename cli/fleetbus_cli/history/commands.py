"""Arguments of `fleetbus diff`, `timeline` and `restore`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.errors import ConfigError
from fleetbus_cli.completion import complete_clusters
from fleetbus_cli.options import (
    ApiCaFile,
    ApiTokenFile,
    ApiTokenText,
    ApiUrl,
    TableOrJson,
)
from fleetbus_cli.target import ApiFlags

_Since = Annotated[
    str,
    typer.Option(
        "--since",
        help="Start of the period: 10m, 2h or 1d back from now, or a time like 2026-01-02T15:04Z.",
    ),
]
_Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", help="Only this cluster; may be repeated.", autocompletion=complete_clusters
    ),
]
_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")]


def diff(
    resource: Annotated[
        str, typer.Argument(metavar="[TYPE]", help="Only this type, like deploy or pods.")
    ] = "",
    since: _Since = "10m",
    until: Annotated[
        str, typer.Option("--until", help="End of the period, in the same form; now by default.")
    ] = "",
    cluster: _Clusters = None,
    namespace: _Namespace = "",
    owned: Annotated[
        bool,
        typer.Option("--owned", help="Include objects that have an owner, like pods of a Job."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of changes.")
    ] = 200,
    output: TableOrJson = "table",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show what changed in the fleet, grouped by change."""
    from fleetbus_cli.history.diff import show_changes  # noqa: PLC0415 -- import cost

    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    query = {
        "since": since,
        "until": until,
        "resource": resource,
        "namespace": namespace,
        "owned": "true" if owned else "",
        "limit": str(limit),
    }
    raise typer.Exit(show_changes(query, cluster or [], output, api))


def timeline(
    cluster: Annotated[str, typer.Argument(autocompletion=complete_clusters)],
    resource: Annotated[str, typer.Argument(metavar="TYPE", help="Like pods or deploy.")],
    name: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME")],
    since: _Since = "1d",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, help="Maximum number of changes.")
    ] = 100,
    no_status: Annotated[
        bool,
        typer.Option("--no-status", help="Leave out the status, and changes of the status alone."),
    ] = False,
    output: TableOrJson = "table",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show the changes of one object, and who acted on them."""
    from fleetbus_cli.history.timeline import show_timeline  # noqa: PLC0415 -- import cost

    namespace, _, last = name.rpartition("/")
    if not last or "/" in namespace:
        raise ConfigError(
            f"{name!r} is neither NAMESPACE/NAME nor the NAME of a cluster-scoped object"
        )
    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    path = (cluster, resource, namespace, last)
    query = {"since": since, "limit": str(limit)}
    raise typer.Exit(show_timeline(path, query, output, api, with_status=not no_status))


def restore(
    objects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TYPE[,TYPE] [NAME]... | TYPE/NAME...]", help="Which types; all by default."
        ),
    ] = None,
    since: _Since = "1h",
    cluster: _Clusters = None,
    namespace: _Namespace = "",
    selector: Annotated[
        str, typer.Option("--selector", "-l", help="Label selector, like app=web.")
    ] = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="Create the objects; without it nothing is written.")
    ] = False,
    kubeconfig: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--kubeconfig",
            help="Your kubeconfig, with one context named like each cluster. Default: that of the"
            " dev fleet of this folder, else KUBECONFIG, else ~/.kube/config.",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            "--context",
            metavar="CLUSTER=CONTEXT",
            help="Context of a cluster, if it has another name; may be repeated.",
        ),
    ] = None,
    output: TableOrJson = "table",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show deleted objects, and restore them with --apply."""
    from fleetbus_cli.history.restore import (  # noqa: PLC0415 -- import cost
        RestoreQuery,
        restore_objects,
    )
    from fleetbus_cli.objects.arguments import parse_objects  # noqa: PLC0415 -- import cost

    query = RestoreQuery(
        chosen=parse_objects(objects) if objects else [],
        since=since,
        clusters=cluster or [],
        namespace=namespace,
        selector=selector,
        kubeconfig=kubeconfig,
        contexts=context or [],
        is_applied=apply,
        output=output,
    )
    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(restore_objects(query, api))
