"""A MultiClusterResource that goes: its objects first, then our finalizer (rules D5, D7).

Deleting it is an explicit order, so no fuse holds it; that its namespace or definition goes is none
(rule D8). What cannot be reached keeps it: only policy
Orphan or the record of an unjoin lets go of an object that we have not seen gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import structlog

from fleetbus.clusters.leaving import LEFT_LABEL
from fleetbus.errors import KubeError
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.kube_events import notices_of
from fleetbus_distributor.hub.status import Condition, Report
from fleetbus_distributor.plan.fleet_fuse import note_held
from fleetbus_distributor.plan.intent import Inventory
from fleetbus_distributor.plan.plan import Hold, HoldReason
from fleetbus_distributor.render.spec import DeletionPolicy
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.rounds.teardown import confirm_all, hold_teardown
from fleetbus_distributor.targets.converge import ALIASED
from fleetbus_distributor.targets.outcome import ClusterOutcome, LeftBehind, State, earliest
from fleetbus_distributor.targets.target import LATER

log = structlog.get_logger()


async def clean_up(
    turn: Round, document: Document, left: frozenset[str], records: str
) -> timedelta | None:
    """Delete or release everything on record, then drop the finalizer.

    Args:
        turn: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        left: clusters that were unjoined.
        records: the namespace of the records that say so.

    Returns:
        When to look again; None when the object may go.
    """
    if turn.policy.deletion is not DeletionPolicy.ORPHAN:
        hub = turn.fleet.cluster(turn.fleet.hub).live
        hold = await hold_teardown(hub, document, turn.inventory)
        if hold and document.confirmed != hold.plan_hash:
            return await _Cleaning(turn, document, left, records).hold(hold)
        if hold:
            turn = replace(turn, inventory=await confirm_all(document, turn.inventory))
    cleaning = _Cleaning(turn, document, left, records)
    present = {info.name for info in turn.fleet.clusters()}
    work = {
        name: Work(prune=list(entries.values()))
        for name, entries in turn.inventory.items()
        if name in present
    }
    outcomes = await turn.run(work, cleaning.interim)
    return await cleaning.finish(outcomes)


class _Cleaning:
    def __init__(self, turn: Round, document: Document, left: frozenset[str], records: str) -> None:
        self._turn = turn
        self._document = document
        self._left = left
        self._records = records

    async def hold(self, hold: Hold) -> timedelta | None:
        """Tell what a person has to confirm, and touch nothing."""
        outcomes = [
            ClusterOutcome(name, State.HELD, hold.reason, hold.message, None, dict(entries))
            for name, entries in self._turn.inventory.items()
        ]
        before = status.read_hold(self._document.status)
        await self._write(outcomes, hold)
        note_held(hold, before)
        return LATER if hold.reason is HoldReason.UNREADABLE else None

    async def interim(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """Tell what keeps the object while slow clusters work."""
        with suppress(KubeError, IntentError):
            await self._write(self._kept(outcomes))

    async def finish(self, outcomes: Sequence[ClusterOutcome]) -> timedelta | None:
        """Let the object go, or tell what keeps it."""
        before = self._document.status
        kept = self._kept(outcomes)
        await self._document.tell(notices_of(outcomes, before))
        if not kept:
            self._log_left_behind(outcomes)
            await self._document.remove_finalizer()
            return None
        await self._write(kept)
        retry: timedelta | None = None
        for one in kept:
            retry = earliest(retry, one.retry)
        return retry or LATER

    def _kept(self, outcomes: Sequence[ClusterOutcome]) -> list[ClusterOutcome]:
        """The clusters that still hold something of ours."""
        absent = [name for name in self._turn.inventory if name not in {o.name for o in outcomes}]
        whole = [*outcomes, *(self._absent(name) for name in absent)]
        return [one for one in whole if one.inventory and not self._may_let_go(one)]

    def _absent(self, name: str) -> ClusterOutcome:
        inventory = dict(self._turn.inventory[name])
        message = (
            "the cluster left the fleet and no record says that this was meant; "
            f"{len(inventory)} object(s) may be there (to let go, create a ConfigMap in "
            f"namespace {self._records} with the label {LEFT_LABEL}={name}, or set "
            "spec.policy.deletion to Orphan)"
        )
        return ClusterOutcome(name, State.HELD, "ClusterGone", message, LATER, inventory)

    def _may_let_go(self, outcome: ClusterOutcome) -> bool:
        if outcome.state is State.HELD and outcome.reason == "ClusterGone":
            return self._is_orphan or outcome.name in self._left
        is_untouched = outcome.state is State.UNREACHABLE or outcome.reason == ALIASED
        return self._is_orphan and is_untouched

    @property
    def _is_orphan(self) -> bool:
        return self._turn.policy.deletion is DeletionPolicy.ORPHAN

    def _log_left_behind(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """The object that could tell of it goes, so the log does."""
        seen: Inventory = {one.name: one.inventory for one in outcomes}
        released = [left for one in outcomes for left in one.left_behind]
        for name, entries in self._turn.inventory.items():
            kept = seen.get(name, entries)
            released += [LeftBehind(name, one.ref, "NotReached") for one in kept.values()]
        for left in released:
            log.info("left_behind", cluster=left.cluster, object=str(left.ref), reason=left.reason)

    async def _write(self, kept: Sequence[ClusterOutcome], hold: Hold | None = None) -> None:
        names = ", ".join(sorted(one.name for one in kept))
        report = Report(
            generation=self._document.generation,
            outcomes=kept,
            inventory={one.name: one.inventory for one in kept},
            left_behind=[left for one in kept for left in one.left_behind],
            hold=hold,
            held={one.name: list(one.inventory.values()) for one in kept} if hold else {},
            problem=Condition(status.READY, False, "Deleting", f"waiting for {names}"),
        )
        await self._document.write_status(status.build(report, self._document.status))
