"""Rule D1 for placement by labels: what a selector lets go of is looked up live before it goes.

The fleet's labels come from a watch of Cluster objects. A watch may be late or wrong about one
cluster, and a deletion that rests on it cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus_distributor.model import CLUSTER_RESOURCE, Placement
from fleetbus_distributor.place import Member, place
from fleetbus_distributor.plan import Plan, without

log = structlog.get_logger()

_PROVIDER: Final = "cluster"
"""What `ClusterInfo.provider` says of clusters that are Cluster objects on the hub."""


async def recheck(
    plan: Plan, placement: Placement, hub: KubeClient, unplaced: Iterable[ClusterInfo]
) -> Plan:
    """Take out of a plan what the live labels of a cluster do not confirm.

    Args:
        plan: what would be pruned.
        placement: of the spec.
        hub: where the Cluster objects are.
        unplaced: the clusters of the fleet that are not chosen; those that another provider tells
            of have no object to read.
    """
    if placement.cluster_selector is None:
        return plan
    told = {info.name for info in unplaced if info.provider == _PROVIDER}
    doubted = {
        name: owned
        for name, owned in plan.prune.items()
        if name in told and not await _is_let_go(hub, placement, name)
    }
    if not doubted:
        return plan
    log.warning("prune_not_confirmed", clusters=", ".join(sorted(doubted)))
    return replace(
        plan,
        prune=without(plan.prune, doubted),
        asked=without(plan.asked, doubted),
        automatic=without(plan.automatic, doubted),
        doubted=doubted,
    )


async def _is_let_go(hub: KubeClient, placement: Placement, name: str) -> bool:
    try:
        cluster = await hub.get(CLUSTER_RESOURCE, "", name)
    except KubeError as error:
        log.warning("cluster_unreadable", cluster=name, error=str(error))
        return False
    if cluster is None:
        return False  # it is leaving the fleet: that is the leave record's business (rule D7)
    labels: dict[str, str] = cluster["metadata"].get("labels") or {}
    return not place(placement, [Member(name, labels)], hub="").targets
