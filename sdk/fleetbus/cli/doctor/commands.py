"""Arguments of `fleetbus doctor`."""

from __future__ import annotations

import typer

from fleetbus.cli.options import NatsUrl, RedisUrl, TableOrJson


def doctor(
    output: TableOrJson = "table", nats_url: NatsUrl = None, redis_url: RedisUrl = None
) -> None:
    """Check NATS, the store and the clusters, and say what to do.

    Exit status 0 means that everything works, perhaps with warnings; 1 that something does not.
    """
    from fleetbus.cli.doctor.doctor import run_doctor  # noqa: PLC0415 -- import cost

    raise typer.Exit(run_doctor(output, nats_url=nats_url, redis_url=redis_url))
