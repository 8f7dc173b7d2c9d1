"""Removes from a member what a join made there, after or together with the unjoin on the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.clusters.membership import NotJoined, NotPossible, unjoin
from fleetbus.clusters.providers.cluster import CLUSTERS, recorded_uid
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.json_fields import mapping
from fleetbus_cli.bootstrap.accounts import PLACES, Place
from fleetbus_cli.bootstrap.hub_objects import WRITTEN
from fleetbus_cli.bootstrap.member import (
    find_ours,
    joined_as,
    member_errors,
    remove_objects,
    require_removal_rights,
)

_ANSWERS_WITHIN: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The outcome of a removal."""

    on_member: Sequence[Place]
    kept: str
    """Why the namespace is kept; empty if it is not."""


async def unjoin_and_remove(
    hub: KubeClient, name: str, admin: KubeConfig, *, namespace: str
) -> Removed:
    """Let a cluster leave, then delete on it what a join made; both can be repeated.

    Args:
        hub: the hub, with the rights of the caller.
        name: the cluster's name in the fleet.
        admin: an administrator's access to the cluster.
        namespace: the namespace of fleetbus on the hub.

    Raises:
        NotJoined: it is not in the fleet, and there is nothing of it on the cluster.
        NotPossible: another cluster answers, or a right is missing; nothing was changed.
        HalfDone: the cluster refused on the way; the message names what is deleted.
        KubeError: the hub refused, or did not answer.
    """
    hub_uid = await hub.kube_system_uid()
    cluster = await hub.get(CLUSTERS, "", name)
    async with KubeClient(admin) as member:
        with member_errors(name):
            async with asyncio.timeout(_ANSWERS_WITHIN.total_seconds()):
                uid = await member.kube_system_uid()
        if cluster is not None and recorded_uid(cluster) not in ("", uid):
            raise NotPossible(
                f"another cluster answers: kube-system has UID {uid}, and {name!r} is the one with"
                f" {recorded_uid(cluster)}"
            )
        with member_errors(name):
            objects = await find_ours(member, hub_uid)
        if others := joined_as(objects) - {name}:
            raise NotPossible(f"this cluster was joined as {', '.join(sorted(others))}")
        with member_errors(name):
            await require_removal_rights(member, objects)
        try:
            await unjoin(hub, name, namespace=namespace)
        except NotJoined:
            if not objects:  # else an earlier unjoin was cut off, or had no access to the cluster
                raise
        gone, reason = await remove_objects(member, hub_uid)
    return Removed(on_member=gone, kept=reason)


async def is_bootstrapped(hub: KubeClient, name: str) -> bool:
    """Whether a join made accounts on the cluster.

    Raises:
        KubeError: the hub refused, or did not answer.
    """
    cluster = await hub.get(CLUSTERS, "", name) or {}
    return WRITTEN in mapping(cluster, "metadata", "annotations")


def removal_commands() -> list[str]:
    """The commands that delete on a member all that a join may have made there."""
    commands: list[str] = []
    for place in sorted(PLACES, key=lambda one: (one.kind == "Namespace", one)):
        where = f" -n {place.namespace}" if place.namespace else ""
        commands.append(f"kubectl delete {place.kind.lower()} {place.name}{where}")
    return commands
