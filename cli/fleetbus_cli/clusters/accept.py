"""Runs `fleetbus clusters accept`: accepts another cluster behind a known name."""

from __future__ import annotations

import uuid

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.process import printer
from fleetbus.watchers.cluster_consent import consent, read_refused
from fleetbus_cli.clusters.bus import run_on_bus
from fleetbus_cli.unknown import bus_clusters, unknown_cluster


def accept_cluster(name: str, uid: str, nats_url: str | None) -> int:
    """Accept the cluster that answers, or the one with this UID; return the exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: the name is invalid, or no NATS address is set.
    """

    async def accept(bus: Bus) -> int:
        kv = KeyValue(bus)
        refused = await read_refused(kv, name)
        names = await bus_clusters(bus)
        if names and name not in names and not refused:
            raise unknown_cluster(name, names)
        if problem := _problem(name, uid, refused):
            printer.note(f"fleetbus: {problem}")
            return 1
        chosen = uid or refused
        await consent(bus, kv, name, chosen)
        printer.line(f"accepted {name}: the cluster whose kube-system has UID {chosen}")
        return 0

    return run_on_bus(name, nats_url, accept)


def _problem(name: str, uid: str, refused: str) -> str:
    """Explain why this UID cannot be accepted; empty if it can.

    A UID may be accepted ahead of time, before a watcher has reported another cluster.
    """
    if refused:
        is_meant = uid in ("", refused)
        return (
            ""
            if is_meant
            else f"the cluster that answers as {name!r} has UID {refused}, not {uid!r}"
        )
    if not uid:
        return f"no other cluster answers as {name!r}"
    return "" if _is_uid(uid) else f"invalid UID {uid!r}, and no other cluster answers as {name!r}"


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
