"""Holds automatic deletions that exceed a budget of ten minutes (rule D8).

There are two in the store: that of one MultiClusterResource and that of the whole fleet. The limits
of one round are in `plan`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter

from fleetbus.deletions.budget import (
    LEAST,
    Answer,
    Decision,
    Deletion,
    DeletionBudget,
    OwnerLimits,
    allowance,
    objects_on_record,
)
from fleetbus.errors import KubeError, StoreError
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.plan.plan import Facts, Hold, HoldReason, Plan, count, hold_automatic

log = structlog.get_logger()

BUDGET_EXCEEDED: Final = Counter(
    "fleetbus_deletion_budget_exceeded_total",
    "Plans held because the fleet-wide budget of deletions that no edit requests is spent.",
)
HELD_PLANS: Final = Counter(
    "fleetbus_held_plans_total",
    "Plans of deletions that were held for a person, by reason.",
    ["reason"],
)
_COUNTED_FOR: Final = 60.0
"""Seconds for which a count of all objects on record is reused."""
_HELD: Final = {Decision.OWNER: HoldReason.FUSE, Decision.FLEET: HoldReason.FLEET}


def note_held(hold: Hold | None, before: Hold | None) -> None:
    """Log and count once that a person has to confirm a plan."""
    if hold is None or (before is not None and before.plan_hash == hold.plan_hash):
        return
    HELD_PLANS.labels(hold.reason.value).inc()
    log.warning("deletions_held", reason=hold.reason.value, plan=hold.plan_hash)


class FleetFuse:
    """Spends the budget on deletions that no edit requests.

    Args:
        budget: shared by all processes.
        now: a monotonic clock in seconds.
    """

    def __init__(self, budget: DeletionBudget, now: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._now = now
        self._counted: tuple[float, int] | None = None

    async def check(self, facts: Facts, plan: Plan, hub: KubeClient) -> Plan:
        """Hold the automatic deletions of a plan if the budget does not allow them.

        Args:
            facts: what the plan was made from.
            plan: what would be done.
            hub: where all MultiClusterResources are.
        """
        if not plan.automatic:
            return plan
        try:
            answer = await self._ask(facts, plan, hub)
        except (StoreError, KubeError) as error:
            log.warning("deletion_budget_unknown", error=str(error))
            return hold_automatic(facts, plan, HoldReason.UNREADABLE)
        if answer.decision is Decision.GRANTED:
            return plan
        if answer.decision is Decision.FLEET:
            BUDGET_EXCEEDED.inc()
            log.error("deletion_budget_exceeded", used=answer.used, wanted=count(plan.automatic))
        return hold_automatic(facts, plan, _HELD[answer.decision])

    async def _ask(self, facts: Facts, plan: Plan, hub: KubeClient) -> Answer:
        owner = OwnerLimits(
            uid=facts.uid,
            clusters=facts.fuse.clusters,
            objects=facts.fuse.objects,
            percent=facts.fuse.percent,
            on_record=count(facts.inventory),
        )
        deletions = [
            Deletion(cluster=name, object=_name(each), is_recreated=each.mark is Mark.OUTDATED)
            for name, owned in plan.automatic.items()
            for each in owned
        ]
        answer = await self._budget.spend(owner, deletions, allowed=LEAST)
        if answer.decision is not Decision.FLEET:
            return answer
        allowed = allowance(await self._on_record(hub))
        if allowed <= LEAST:
            return answer
        return await self._budget.spend(owner, deletions, allowed=allowed)

    async def _on_record(self, hub: KubeClient) -> int:
        """Count the objects of all MultiClusterResources, only when the budget runs out."""
        now = self._now()
        if self._counted is None or self._counted[0] < now - _COUNTED_FOR:
            resources = await hub.list(MULTI_CLUSTER_RESOURCES)
            self._counted = (
                now,
                sum(objects_on_record(resource.get("status") or {}) for resource in resources),
            )
        return self._counted[1]


def _name(owned: Owned) -> str:
    return owned.uid or "/".join(owned.ref.key)
