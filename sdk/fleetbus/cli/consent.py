"""What `fleetbus clusters accept` does."""

from __future__ import annotations

import sys

from fleetbus.bus import Bus, KeyValue
from fleetbus.cli.cluster_call import call_cluster
from fleetbus.consent import consent, read_refused


def accept_cluster(name: str, uid: str, nats_url: str | None) -> int:
    """Consent to the cluster that answers, or to the one with this UID; answers the exit status.

    Raises:
        ConfigError: the name cannot be one, or NATS is not known.
    """

    async def accept(bus: Bus) -> int:
        kv = KeyValue(bus)
        refused = await read_refused(kv, name)
        chosen = uid or refused
        if not chosen:
            print(f"fleetbus: no other cluster answers under {name!r}", file=sys.stderr)
            return 1
        await consent(bus, kv, name, chosen)
        print(f"cluster {name} may be the one whose kube-system has UID {chosen}")
        if refused and refused != chosen:
            print(f"fleetbus: but the one that answers now has UID {refused}", file=sys.stderr)
        return 0

    return call_cluster(name, nats_url, accept)
