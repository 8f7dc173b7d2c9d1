"""Runs `fleetbus clusters audit`: asks a watcher to compare the snapshot with the API server."""

from __future__ import annotations

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.process import printer
from fleetbus.watchers.resync import request_audit
from fleetbus_cli.clusters.bus import run_on_bus
from fleetbus_cli.unknown import bus_clusters, unknown
from fleetbus_proto.keys import kv_incarnation


def audit_cluster(name: str, nats_url: str | None) -> int:
    """Ask the cluster's watchers for a full audit; return the exit status.

    Raises:
        UnknownName: no watcher has connected to such a cluster.
        ConfigError: the name is invalid, or no NATS address is set.
    """

    async def ask(bus: Bus) -> int:
        kv = KeyValue(bus)
        if await kv.get(kv_incarnation(name)) is None:
            message = f"no watcher has ever connected to a cluster {name!r}"
            raise unknown(message, name, await bus_clusters(bus))
        await request_audit(bus, kv, name)
        printer.line(
            f"audit of {name} requested; differences appear in the projector's log and metrics"
        )
        return 0

    return run_on_bus(name, nats_url, ask)
