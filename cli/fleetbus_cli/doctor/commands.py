"""Arguments of `fleetbus doctor`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus_cli.options import HubContext, HubKubeconfig, NatsUrl, RedisUrl, TableOrJson


def doctor(
    output: TableOrJson = "table",
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
    bundle: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write what a bug report needs into this new file, like bundle.tar.gz.",
        ),
    ] = None,
) -> None:
    """Check the fleet, and say what to do about each problem.

    It checks NATS, the store, the clusters, rights and credentials; with the hub's API server also
    what each component may do there and in every cluster, with the credentials that the fleet uses.
    Exit status 0 means that everything works, perhaps with warnings; 1 that something does not.

    A bundle has versions, settings, conditions, queues, the state of NATS and the store, and the
    last lines of logs, without secrets; its README.txt lists what is in it.
    """
    from fleetbus_cli.doctor.doctor import run_doctor  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(
        run_doctor(output, nats_url=nats_url, redis_url=redis_url, hub=hub, bundle=bundle)
    )
