"""What `fleetbus clusters accept` does."""

from __future__ import annotations

import sys
import uuid

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.cli.clusters.bus import call_cluster
from fleetbus.cli.unknown import bus_clusters, unknown_cluster
from fleetbus.watchers.cluster_consent import consent, read_refused


def accept_cluster(name: str, uid: str, nats_url: str | None) -> int:
    """Consent to the cluster that answers, or to the one with this UID; answers the exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: the name cannot be one, or NATS is not known.
    """

    async def accept(bus: Bus) -> int:
        kv = KeyValue(bus)
        refused = await read_refused(kv, name)
        known = await bus_clusters(bus)
        if known and name not in known and not refused:
            raise unknown_cluster(name, known)
        if problem := _problem(name, uid, refused):
            print(f"fleetbus: {problem}", file=sys.stderr)
            return 1
        chosen = uid or refused
        await consent(bus, kv, name, chosen)
        print(f"cluster {name} may be the one whose kube-system has UID {chosen}")
        return 0

    return call_cluster(name, nats_url, accept)


def _problem(name: str, uid: str, refused: str) -> str:
    """Why this cannot be consented to; before a watcher has told of any, one may be announced."""
    if refused:
        is_meant = uid in ("", refused)
        return "" if is_meant else f"under {name!r} the one that answers has {refused}, not {uid!r}"
    if not uid:
        return f"no other cluster answers under {name!r}"
    return "" if _is_uid(uid) else f"{uid!r} is no UID, and no other cluster answers under {name!r}"


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
