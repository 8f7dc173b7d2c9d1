"""`fleetbus queue`: what waits, what is worked on, what is kept back; and letting it go."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import NatsUrl, RedisUrl, TableOrJson
from fleetbus.errors import ConfigError


def queue(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTROLLER] | retry CONTROLLER [CLUSTER/NAMESPACE/NAME]... |"
            " release CONTROLLER [CLUSTER/NAMESPACE/NAME]... | forget CONTROLLER",
            help="Show the queue of one controller or of all; run now what waits after failures;"
            " let items out of quarantine; or remove all that is kept for a controller that has"
            " gone for good.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="With release: everything in quarantine.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=500,
            help="With CONTROLLER: most items of each state; 20 without it.",
            show_default=False,
        ),
    ] = None,
    output: TableOrJson = "table",
    redis_url: RedisUrl = None,
    nats_url: NatsUrl = None,
) -> None:
    """Show the queues of the controllers, retry or release items, forget a controller."""
    from fleetbus.cli.queue.forget import forget  # noqa: PLC0415 -- import cost
    from fleetbus.cli.queue.queue import (  # noqa: PLC0415 -- import cost
        release_items,
        retry_items,
        show_queues,
    )

    first, *rest = words or [""]
    if limit is not None and first in {"", "retry", "release", "forget"}:
        raise ConfigError("--limit belongs to `fleetbus queue CONTROLLER`, which lists the items")
    if first == "forget":
        raise typer.Exit(forget(rest, nats_url=nats_url, redis_url=redis_url))
    if first == "retry":
        raise typer.Exit(retry_items(rest, every=every, redis_url=redis_url))
    if first == "release":
        raise typer.Exit(release_items(rest, every=every, redis_url=redis_url))
    raise typer.Exit(
        show_queues(first, extra=rest, every=every, limit=limit, output=output, redis_url=redis_url)
    )
