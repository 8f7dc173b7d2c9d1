"""Cleans up after a deleted MultiClusterResource: its objects, then our finalizer (rules D5, D7).

Its deletion is an explicit request, so no fuse holds it; the deletion of its namespace or CRD is
not (rule D8). A cluster that cannot be reached keeps it: only policy Orphan or the record of an
unjoin gives up an object that we have not seen gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from fleetbus.clusters.leaving import LEFT_LABEL
from fleetbus.errors import KubeError
from fleetbus_distributor.announce.announce import Announce
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.status import Condition, Report
from fleetbus_distributor.plan.fleet_fuse import note_held
from fleetbus_distributor.plan.intent import Inventory, Key, Owned
from fleetbus_distributor.plan.plan import Hold, HoldReason
from fleetbus_distributor.render.spec import DeletionPolicy
from fleetbus_distributor.rounds.execute import Executor
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.rounds.teardown import confirm_all, hold_teardown
from fleetbus_distributor.targets.converge import ALIASED
from fleetbus_distributor.targets.outcome import ClusterOutcome, LeftBehind, State, earliest
from fleetbus_distributor.targets.target import LATER

log = structlog.get_logger()

_GONE = "ClusterGone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Runs the rounds of deleted MultiClusterResources."""

    executor: Executor
    announce: Announce
    records: str
    """The namespace of the records of unjoins."""

    async def run(self, round_: Round, document: Document) -> timedelta | None:
        """Delete or release everything on record, then remove the finalizer.

        Args:
            round_: the facts of the round.
            document: the MultiClusterResource, read live.

        Returns:
            When to retry; None if the finalizer was removed.
        """
        # Read and decide: whether a person has to confirm it first.
        inventory = round_.inventory
        if round_.policy.deletion is not DeletionPolicy.ORPHAN:
            hold = await hold_teardown(round_.hub, document, inventory)
            if hold and document.confirmed != hold.plan_hash:
                return await self._hold(document, inventory, hold)
            if hold:
                inventory = await confirm_all(document, inventory)

        def keepers(outcomes: Sequence[ClusterOutcome]) -> list[ClusterOutcome]:
            complete = with_absent(inventory, outcomes, self.records)
            return keep_finalizer(complete, round_.policy.deletion, round_.unjoined)

        async def interim(outcomes: Sequence[ClusterOutcome]) -> None:
            with suppress(KubeError, IntentError):
                await _write(document, keepers(outcomes))

        # Execute.
        members = {info.name for info in round_.fleet.clusters()}
        work = {
            name: Work(recorded=entries, prune=list(entries.values()))
            for name, entries in inventory.items()
            if name in members
        }
        outcomes = await self.executor.run(round_, work, interim)
        # Report: what keeps the object, or, because its status goes with it, what stays behind.
        before, waiting = document.status, keepers(outcomes)
        if waiting:
            await _write(document, waiting)
        await self.announce(document, outcomes, before)
        if waiting:
            return _earliest_retry(waiting)
        for left in left_behind(inventory, outcomes):
            log.info("left_behind", cluster=left.cluster, object=str(left.ref), reason=left.reason)
        await document.drop_intent()
        await document.remove_finalizer()
        return None

    async def _hold(self, document: Document, inventory: Inventory, hold: Hold) -> timedelta | None:
        """Report what a person has to confirm, and touch nothing."""
        outcomes = [
            ClusterOutcome(name, State.HELD, hold.reason, hold.message, None, dict(entries))
            for name, entries in inventory.items()
        ]
        before = document.status
        await _write(document, outcomes, hold)
        await self.announce(document, outcomes, before)
        note_held(hold, status.read_hold(before))
        return LATER if hold.reason is HoldReason.UNREADABLE else None


def keep_finalizer(
    outcomes: Sequence[ClusterOutcome], policy: DeletionPolicy, unjoined: frozenset[str]
) -> list[ClusterOutcome]:
    """Decide which clusters keep the finalizer: those that may still have objects of ours (pure).

    Args:
        outcomes: of all clusters on record, also of those that are absent.
        policy: of the deletion.
        unjoined: clusters that were unjoined.
    """
    return [
        outcome
        for outcome in outcomes
        if outcome.inventory and not _may_give_up(outcome, policy, unjoined)
    ]


def _may_give_up(outcome: ClusterOutcome, policy: DeletionPolicy, unjoined: frozenset[str]) -> bool:
    is_orphan = policy is DeletionPolicy.ORPHAN
    if outcome.state is State.HELD and outcome.reason == _GONE:
        return is_orphan or outcome.name in unjoined
    is_untouched = outcome.state is State.UNREACHABLE or outcome.reason == ALIASED
    return is_orphan and is_untouched


def left_behind(inventory: Inventory, outcomes: Sequence[ClusterOutcome]) -> list[LeftBehind]:
    """List what stays on clusters once nothing keeps the finalizer (pure)."""
    remains = inventory | {outcome.name: outcome.inventory for outcome in outcomes}
    released = [left for outcome in outcomes for left in outcome.left_behind]
    return released + [
        LeftBehind(name, owned.ref, "NotReached")
        for name in inventory
        for owned in remains[name].values()
    ]


def with_absent(
    inventory: Inventory, outcomes: Sequence[ClusterOutcome], records: str
) -> list[ClusterOutcome]:
    """Add the outcomes of clusters that are on record and have left the fleet (pure)."""
    present = {outcome.name for outcome in outcomes}
    absent = [
        _absent(name, entries, records)
        for name, entries in inventory.items()
        if name not in present
    ]
    return [*outcomes, *absent]


def _absent(name: str, entries: Mapping[Key, Owned], records: str) -> ClusterOutcome:
    message = (
        "the cluster left the fleet, and no record shows that this was intended; "
        f"{len(entries)} object(s) may be there (to give them up, create a ConfigMap in "
        f"namespace {records} with the label {LEFT_LABEL}={name}, or set "
        "spec.policy.deletion to Orphan)"
    )
    return ClusterOutcome(name, State.HELD, _GONE, message, LATER, dict(entries))


def _earliest_retry(outcomes: Sequence[ClusterOutcome]) -> timedelta:
    retry: timedelta | None = None
    for outcome in outcomes:
        retry = earliest(retry, outcome.retry)
    return retry or LATER


async def _write(
    document: Document, waiting: Sequence[ClusterOutcome], hold: Hold | None = None
) -> None:
    names = ", ".join(sorted(outcome.name for outcome in waiting))
    report = Report(
        generation=document.generation,
        outcomes=waiting,
        inventory={outcome.name: outcome.inventory for outcome in waiting},
        left_behind=[left for outcome in waiting for left in outcome.left_behind],
        hold=hold,
        held={each.name: list(each.inventory.values()) for each in waiting} if hold else {},
        problem=Condition(status.READY, False, "Deleting", f"waiting for {names}"),
    )
    await document.write_status(status.build(report, document.status))
