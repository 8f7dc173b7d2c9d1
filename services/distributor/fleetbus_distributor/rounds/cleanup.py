"""Cleans up after a deleted MultiClusterResource: its objects, then our finalizer (rules D5, D7).

Its deletion is an explicit request, so no fuse holds it; the deletion of its namespace or CRD is
not (rule D8). A cluster that cannot be reached keeps it: only policy Orphan or the record of an
unjoin gives up an object that we have not seen gone.
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
    round_: Round, document: Document, unjoined: frozenset[str], records: str
) -> timedelta | None:
    """Delete or release everything on record, then remove the finalizer.

    Args:
        round_: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        unjoined: clusters that were unjoined.
        records: the namespace of the records of these unjoins.

    Returns:
        When to retry; None if the finalizer was removed.
    """
    if round_.policy.deletion is not DeletionPolicy.ORPHAN:
        hub = round_.fleet.cluster(round_.fleet.hub).live
        hold = await hold_teardown(hub, document, round_.inventory)
        if hold and document.confirmed != hold.plan_hash:
            return await _Cleanup(round_, document, unjoined, records).hold(hold)
        if hold:
            round_ = replace(round_, inventory=await confirm_all(document, round_.inventory))
    cleanup = _Cleanup(round_, document, unjoined, records)
    present = {info.name for info in round_.fleet.clusters()}
    work = {
        name: Work(prune=list(entries.values()))
        for name, entries in round_.inventory.items()
        if name in present
    }
    outcomes = await round_.run(work, cleanup.interim)
    return await cleanup.finish(outcomes)


class _Cleanup:
    def __init__(
        self, round_: Round, document: Document, unjoined: frozenset[str], records: str
    ) -> None:
        self._round = round_
        self._document = document
        self._unjoined = unjoined
        self._records = records

    async def hold(self, hold: Hold) -> timedelta | None:
        """Report what a person has to confirm, and touch nothing."""
        outcomes = [
            ClusterOutcome(name, State.HELD, hold.reason, hold.message, None, dict(entries))
            for name, entries in self._round.inventory.items()
        ]
        before = self._document.status
        await self._write(outcomes, hold)
        await self._round.announce(self._document, outcomes, before)
        note_held(hold, status.read_hold(before))
        return LATER if hold.reason is HoldReason.UNREADABLE else None

    async def interim(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """Report what keeps the object while slow clusters work."""
        with suppress(KubeError, IntentError):
            await self._write(self._kept(outcomes))

    async def finish(self, outcomes: Sequence[ClusterOutcome]) -> timedelta | None:
        """Remove the finalizer, or report what keeps it."""
        before = self._document.status
        kept = self._kept(outcomes)
        if kept:
            await self._write(kept)
        await self._round.announce(self._document, outcomes, before)
        if not kept:
            self._log_left_behind(outcomes)
            await self._document.drop_intent()
            await self._document.remove_finalizer()
            return None
        retry: timedelta | None = None
        for one in kept:
            retry = earliest(retry, one.retry)
        return retry or LATER

    def _kept(self, outcomes: Sequence[ClusterOutcome]) -> list[ClusterOutcome]:
        """The clusters that still have objects of ours."""
        absent = [name for name in self._round.inventory if name not in {o.name for o in outcomes}]
        whole = [*outcomes, *(self._absent(name) for name in absent)]
        return [one for one in whole if one.inventory and not self._may_give_up(one)]

    def _absent(self, name: str) -> ClusterOutcome:
        inventory = dict(self._round.inventory[name])
        message = (
            "the cluster left the fleet, and no record shows that this was intended; "
            f"{len(inventory)} object(s) may be there (to give them up, create a ConfigMap in "
            f"namespace {self._records} with the label {LEFT_LABEL}={name}, or set "
            "spec.policy.deletion to Orphan)"
        )
        return ClusterOutcome(name, State.HELD, "ClusterGone", message, LATER, inventory)

    def _may_give_up(self, outcome: ClusterOutcome) -> bool:
        if outcome.state is State.HELD and outcome.reason == "ClusterGone":
            return self._is_orphan or outcome.name in self._unjoined
        is_untouched = outcome.state is State.UNREACHABLE or outcome.reason == ALIASED
        return self._is_orphan and is_untouched

    @property
    def _is_orphan(self) -> bool:
        return self._round.policy.deletion is DeletionPolicy.ORPHAN

    def _log_left_behind(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """Log it, because the object with the status is going away."""
        seen: Inventory = {one.name: one.inventory for one in outcomes}
        released = [left for one in outcomes for left in one.left_behind]
        for name, entries in self._round.inventory.items():
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
