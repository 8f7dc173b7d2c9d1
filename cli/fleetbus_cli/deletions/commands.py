"""Arguments of `fleetbus fuse` and `orphans`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus_cli.options import HubContext, HubKubeconfig, NatsUrl, RedisUrl, TableOrJson


def fuse(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[confirm NAMESPACE/NAME... | release]",
            help="Show the held deletions; confirm those of MultiClusterResources as shown; or"
            " confirm all that the fleet budget holds, and reset the budget.",
            show_default=False,
        ),
    ] = None,
    output: TableOrJson = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
) -> None:
    """Show the deletions that wait for you, and confirm them."""
    from fleetbus_cli.deletions.fuse import run_fuse  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_fuse(words or [], output=output, hub=hub, redis_url=redis_url))


def orphans(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[delete UID...]",
            help="Show the orphans; or delete those with these UIDs, after a live check of each.",
            show_default=False,
        ),
    ] = None,
    output: TableOrJson = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
    nats_url: NatsUrl = None,
) -> None:
    """Show objects without a MultiClusterResource; delete them."""
    from fleetbus_cli.deletions.orphans import run_orphans  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    status = run_orphans(
        words or [], output=output, hub=hub, redis_url=redis_url, nats_url=nats_url
    )
    raise typer.Exit(status)
