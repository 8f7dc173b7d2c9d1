"""Arguments of `fleetbus events` and `explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus_cli.options import NatsUrl, RedisUrl, TableOrJson, output_option


def events(
    resource: Annotated[
        str,
        typer.Argument(
            help="Resource, like pods, po or apps/v1/deployments; for a custom resource its plural."
        ),
    ] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Only this cluster.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    name: Annotated[str, typer.Option("--name", help="Only objects with this name.")] = "",
    verb: Annotated[
        str,
        typer.Option(
            "--verb",
            help="Only this verb: added, modified, deleted or listed; with --distribution an "
            "event like held, corrected or wave-failed.",
        ),
    ] = "",
    distribution: Annotated[
        bool,
        typer.Option(
            "--distribution",
            "-d",
            help="Show events of the distributor; --namespace and --name select"
            " MultiClusterResources.",
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl-C.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Start this long ago, like 90s, 10m, 2h or 1d. Default: 10m; with --follow, now.",
        ),
    ] = "",
    output: TableOrJson = "table",
    nats_url: NatsUrl = None,
) -> None:
    """Show events of the last ten minutes, or live with --follow."""
    from fleetbus_cli.events.distribution import DistributionQuery, show_distribution  # noqa: PLC0415 -- import cost
    from fleetbus_cli.events.events import EventQuery, show_events  # noqa: PLC0415 -- import cost

    since = since or ("" if follow else "10m")
    kind = DistributionQuery if distribution else EventQuery
    query = kind.read(
        resource=resource,
        cluster=cluster,
        namespace=namespace,
        name=name,
        verb=verb,
        since=since,
        follow=follow,
        output=output,
    )
    if isinstance(query, DistributionQuery):
        raise typer.Exit(show_distribution(query, nats_url))
    raise typer.Exit(show_events(query, nats_url))


def explain(
    cluster: Annotated[str, typer.Argument(help="Name of the cluster.")],
    resource: Annotated[
        str, typer.Argument(help="Resource, like configmaps, cm or apps/v1/deployments.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAMESPACE/NAME", help="The object; NAME alone if it is cluster-scoped."
        ),
    ],
    controller: Annotated[
        str,
        typer.Option(
            "--controller", help="Only this controller. Default: all that watch the resource."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Show changes of this last period, like 10m, 2h or 1d.")
    ] = "1h",
    output: Annotated[str, output_option("text", "json")] = "text",
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Show what happened to one object, and what it waits for."""
    from fleetbus_cli.events.explain import ExplainQuery, explain_object  # noqa: PLC0415 -- import cost

    query = ExplainQuery.read(
        cluster=cluster,
        resource=resource,
        name=name,
        controller=controller,
        since=since,
        output=output,
    )
    raise typer.Exit(explain_object(query, nats_url=nats_url, redis_url=redis_url))
