"""Checks deletions that follow from labels against the live Cluster objects (rule D1).

The labels of the fleet come from a watch of Cluster objects. A watch may be late or wrong about one
cluster, and a deletion that follows from it cannot be undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.plan.plan import Plan, without
from fleetbus_distributor.render.place import Member, place
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE, Placement

log = structlog.get_logger()

_PROVIDER: Final = "cluster"
"""`ClusterInfo.provider` of clusters that are Cluster objects on the hub."""


async def recheck(
    plan: Plan, placement: Placement, hub: KubeClient, clusters: Iterable[ClusterInfo]
) -> Plan:
    """Take out of a plan what the live labels of a cluster do not confirm.

    Args:
        plan: what would be pruned or recreated.
        placement: of the spec.
        hub: where the Cluster objects are.
        clusters: the fleet as the plan knows it; those of other providers have no object to read.
    """
    rechecked = {info.name: info for info in clusters if info.provider == _PROVIDER}
    doubted = {
        name: owned
        for name, owned in plan.prune.items()
        if name in rechecked and not await _is_confirmed(hub, placement, rechecked[name], owned)
    }
    if not doubted:
        return plan
    log.warning("prune_not_confirmed", clusters=", ".join(sorted(doubted)))
    return replace(
        plan,
        prune=without(plan.prune, doubted),
        requested=without(plan.requested, doubted),
        automatic=without(plan.automatic, doubted),
        doubted=doubted,
    )


async def _is_confirmed(
    hub: KubeClient, placement: Placement, cluster: ClusterInfo, owned: Iterable[Owned]
) -> bool:
    is_replaced = any(each.mark is Mark.OUTDATED for each in owned)
    is_dropped = placement.cluster_selector is not None and not _is_chosen(placement, cluster)
    if not is_replaced and not is_dropped:
        return True
    live = await _live(hub, cluster)
    if live is None:
        return False
    return not (is_replaced and live.labels != cluster.labels) and not (
        is_dropped and _is_chosen(placement, live)
    )


def _is_chosen(placement: Placement, cluster: ClusterInfo) -> bool:
    return bool(place(placement, [Member(cluster.name, cluster.labels)], hub="").targets)


async def _live(hub: KubeClient, info: ClusterInfo) -> ClusterInfo | None:
    try:
        cluster = await hub.get(CLUSTER_RESOURCE, "", info.name)
    except KubeError as error:
        log.warning("cluster_unreadable", cluster=info.name, error=str(error))
        return None
    if cluster is None:
        return None  # it is leaving the fleet, which the leave record covers (rule D7)
    labels: dict[str, str] = cluster["metadata"].get("labels") or {}
    return replace(info, labels=labels)
