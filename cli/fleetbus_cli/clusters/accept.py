"""Runs `fleetbus clusters accept`: accepts another cluster behind a known name."""

from __future__ import annotations

import uuid

from fleetbus.agents.membership import accept_agent
from fleetbus.agents.records import AgentRecord
from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.process import printer
from fleetbus.watchers.cluster_consent import consent, read_refused
from fleetbus_cli.clusters.bus import run_on_bus
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.unknown import bus_clusters, unknown_cluster
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster


def accept_cluster(name: str, uid: str, nats_url: str | None, *, hub: Hub, namespace: str) -> int:
    """Accept the agent that waits, the cluster that answers, or the one with this UID.

    Returns:
        The exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: the name is invalid, or no NATS address is set.
    """
    if not uid and (status := _accept_agent(name, hub, namespace)) is not None:
        return status

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


def _accept_agent(name: str, hub: Hub, namespace: str) -> int | None:
    """Accept an agent that waits for it; None if there is none, or no hub can be asked.

    Whoever accepts a UID need not have rights on the hub, unless a flag names it.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise ConfigError(str(e)) from e
    try:
        config = resolve_hub(hub)
    except ConfigError:
        if any(hub):
            raise
        return None
    accepted: list[AgentRecord] = []

    async def main() -> int:
        try:
            async with KubeClient(config) as client:
                if record := await accept_agent(client, name, namespace):
                    accepted.append(record)
        except KubeError:
            if any(hub):
                raise
        return 0

    status = run_on_hub(main())
    if status or not accepted:
        return status or None
    (record,) = accepted
    printer.line(
        f"accepted the agent of {name}: {record.instance or 'unnamed'}, in the cluster whose"
        f" kube-system has UID {record.uid or 'unknown'}"
    )
    return 0


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
        return f"nothing to accept: no other cluster answers as {name!r}"
    return "" if _is_uid(uid) else f"invalid UID {uid!r}, and no other cluster answers as {name!r}"


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
