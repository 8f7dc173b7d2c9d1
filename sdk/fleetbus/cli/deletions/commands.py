"""`fleetbus fuse`: deletions that wait for a person, and letting them happen."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import HubContext, HubKubeconfig, RedisUrl, TableOrJson


def fuse(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[confirm NAMESPACE/NAME... | release]",
            help="Show what is held; delete what MultiClusterResources hold, as it is shown; or do"
            " so for all that the fleet's budget holds, and fill the budget up.",
            show_default=False,
        ),
    ] = None,
    output: TableOrJson = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
) -> None:
    """Show the deletions of the distributor that wait for a person, and confirm them."""
    from fleetbus.cli.deletions.fuse import run_fuse  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_fuse(words or [], output=output, hub=hub, redis_url=redis_url))


def orphans(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[delete UID...]",
            help="Show them; or delete those with these UIDs, if everything says live that each is"
            " one.",
            show_default=False,
        ),
    ] = None,
    output: TableOrJson = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
) -> None:
    """Show what MultiClusterResources wrote and none has on record any more, and delete it."""
    from fleetbus.cli.deletions.orphans import run_orphans  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_orphans(words or [], output=output, hub=hub, redis_url=redis_url))
