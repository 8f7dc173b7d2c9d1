"""`fleetbus queue`: what waits, what is worked on, what is kept back; and letting it go."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import RedisUrl


def queue(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTROLLER] | release CONTROLLER [CLUSTER/NAMESPACE/NAME]...",
            help="Show the queue of one controller or of all; or let items out of quarantine.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="With release: everything in quarantine.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    redis_url: RedisUrl = None,
) -> None:
    """Show the queues of the controllers, or release items from quarantine."""
    from fleetbus.cli.queue_call import release_items, show_queues  # noqa: PLC0415 -- import cost

    first, *rest = words or [""]
    if first == "release":
        raise typer.Exit(release_items(rest, every=every, redis_url=redis_url))
    raise typer.Exit(
        show_queues(first, extra=rest, every=every, output=output, redis_url=redis_url)
    )
