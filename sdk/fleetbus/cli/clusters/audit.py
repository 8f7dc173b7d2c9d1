"""What `fleetbus clusters audit` does."""

from __future__ import annotations

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.cli.clusters.bus import call_cluster
from fleetbus.cli.unknown import bus_clusters, unknown
from fleetbus.watchers.resync import request_audit
from fleetbus_proto.keys import kv_incarnation


def audit_cluster(name: str, nats_url: str | None) -> int:
    """Ask the cluster's watchers for an audit of everything; answers the exit status.

    Raises:
        UnknownName: no watcher has ever seen it.
        ConfigError: the name cannot be one, or NATS is not known.
    """

    async def ask(bus: Bus) -> int:
        kv = KeyValue(bus)
        if await kv.get(kv_incarnation(name)) is None:
            said = f"no watcher has ever seen a cluster {name!r}"
            raise unknown(said, name, await bus_clusters(bus))
        await request_audit(bus, kv, name)
        print(f"cluster {name} will be audited; differences are in the projector's log and metrics")
        return 0

    return call_cluster(name, nats_url, ask)
