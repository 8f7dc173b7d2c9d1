"""`fleetbus explain`: the timeline of one object, and where it stands."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import NatsUrl, RedisUrl


def explain(
    cluster: Annotated[str, typer.Argument(help="The cluster.")],
    resource: Annotated[str, typer.Argument(help="Like configmaps, cm or apps/v1/deployments.")],
    name: Annotated[
        str,
        typer.Argument(metavar="NAMESPACE/NAME", help="The object; NAME alone if it has none."),
    ],
    controller: Annotated[
        str, typer.Option("--controller", help="Only this controller; default: all that watch it.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Show changes since so long ago, like 10m, 2h or 1d.")
    ] = "1h",
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Say what happened to one object, what each controller made of it, and what it waits for."""
    from fleetbus.cli.explaining import Question, explain_object  # noqa: PLC0415 -- import cost

    question = Question.read(
        cluster=cluster,
        resource=resource,
        name=name,
        controller=controller,
        since=since,
        output=output,
    )
    raise typer.Exit(explain_object(question, nats_url=nats_url, redis_url=redis_url))
