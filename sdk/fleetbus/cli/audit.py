"""What `fleetbus clusters audit` does."""

from __future__ import annotations

import sys

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.cli.cluster_call import call_cluster
from fleetbus.watchers.wanted import want_audit
from fleetbus_proto.keys import kv_incarnation


def audit_cluster(name: str, nats_url: str | None) -> int:
    """Ask the cluster's watchers for an audit of everything; answers the exit status.

    Raises:
        ConfigError: the name cannot be one, or NATS is not known.
    """

    async def ask(bus: Bus) -> int:
        kv = KeyValue(bus)
        if await kv.get(kv_incarnation(name)) is None:
            print(f"fleetbus: no watcher has ever seen a cluster {name!r}", file=sys.stderr)
            return 1
        await want_audit(bus, kv, name)
        print(f"cluster {name} will be audited; differences are in the projector's log and metrics")
        return 0

    return call_cluster(name, nats_url, ask)
