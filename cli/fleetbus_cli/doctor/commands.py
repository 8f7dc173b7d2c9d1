"""Arguments of `fleetbus doctor`."""

from __future__ import annotations

import typer

from fleetbus_cli.options import HubContext, HubKubeconfig, NatsUrl, RedisUrl, TableOrJson


def doctor(
    output: TableOrJson = "table",
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Check the fleet, and say what to do about each problem.

    It checks NATS, the store, the clusters, rights and credentials; with the hub's API server also
    what each component may do there and in every cluster, with the credentials that the fleet uses.
    Exit status 0 means that everything works, perhaps with warnings; 1 that something does not.
    """
    from fleetbus_cli.doctor.doctor import run_doctor  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_doctor(output, nats_url=nats_url, redis_url=redis_url, hub=hub))
