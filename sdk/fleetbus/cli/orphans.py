"""`fleetbus orphans`: objects that carry our mark and that nobody has on record."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import HubContext, HubKubeconfig, RedisUrl


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
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    redis_url: RedisUrl = None,
) -> None:
    """Show what MultiClusterResources wrote and none has on record any more, and delete it."""
    from fleetbus.cli.orphans_call import run_orphans  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_orphans(words or [], output=output, hub=hub, redis_url=redis_url))
