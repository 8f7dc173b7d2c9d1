"""Arguments of `fleetbus queue`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fleetbus.errors import ConfigError
from fleetbus_cli.options import NatsUrl, RedisUrl, TableOrJson

_MOST: Final = 500
_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[[retry|release|forget] CONTROLLER [ITEM]]",
        help="Show the queue of one controller or of all; retry delayed items now; release items"
        " from quarantine; or delete all state of a controller that no longer exists."
        " An ITEM is CLUSTER/NAMESPACE/NAME; `retry` without one means all.",
        show_default=False,
    ),
]
_Every = Annotated[
    bool, typer.Option("--all", help="With release: release all items in quarantine.")
]
_Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        help=f"With CONTROLLER: most items to list of each state, up to {_MOST} (default 20).",
        show_default=False,
    ),
]


def queue(
    words: _Words = None,
    every: _Every = False,
    limit: _Limit = None,
    output: TableOrJson = "table",
    redis_url: RedisUrl = None,
    nats_url: NatsUrl = None,
) -> None:
    """Show workqueues; retry, release or forget what is in them."""
    first, *arguments = words or [""]
    if limit is not None and first in {"", "retry", "release", "forget"}:
        raise ConfigError(
            "--limit is only valid with `fleetbus queue CONTROLLER`, which lists the items"
        )
    if limit is not None and not 1 <= limit <= _MOST:
        raise ConfigError(f"--limit {limit} is not between 1 and {_MOST}")
    if first == "forget":
        from fleetbus_cli.queue.forget import forget  # noqa: PLC0415 -- import cost

        raise typer.Exit(forget(arguments, nats_url=nats_url, redis_url=redis_url))
    if first == "retry":
        from fleetbus_cli.queue.retry import retry_items  # noqa: PLC0415 -- import cost

        raise typer.Exit(retry_items(arguments, every=every, redis_url=redis_url))
    if first == "release":
        from fleetbus_cli.queue.release import release_items  # noqa: PLC0415 -- import cost

        raise typer.Exit(release_items(arguments, every=every, redis_url=redis_url))
    from fleetbus_cli.queue.show import show_queues  # noqa: PLC0415 -- import cost

    raise typer.Exit(
        show_queues(
            first, extra=arguments, every=every, limit=limit, output=output, redis_url=redis_url
        )
    )
