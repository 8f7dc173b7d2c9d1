"""Runs one round for all clusters: read, decide, execute, report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fleetbus.errors import KubeError
from fleetbus_distributor.announce.announce import Announce
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import entries, status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.off_loop import off_loop
from fleetbus_distributor.plan.fleet_fuse import FleetFuse, note_held
from fleetbus_distributor.plan.plan import Facts, Plan, make_plan
from fleetbus_distributor.plan.recheck_labels import recheck
from fleetbus_distributor.render.draft import Draft, Renderer
from fleetbus_distributor.render.spec import Spec
from fleetbus_distributor.rollout.changes import changes_of
from fleetbus_distributor.rollout.rollouts import HEALTH_POLL, Progress
from fleetbus_distributor.rounds.decide import Decision, decide, plan_facts
from fleetbus_distributor.rounds.execute import Executor
from fleetbus_distributor.rounds.report import FollowUp, complete_outcomes, follow_up, report_of
from fleetbus_distributor.rounds.round import Requeue, Round
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.targets.outcome import ClusterOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Runs the rounds for all clusters, with what all rounds of the process share."""

    renderer: Renderer
    fuse: FleetFuse
    executor: Executor
    pace: StatusPace
    announce: Announce
    requeue: Requeue

    async def run(
        self,
        round_: Round,
        document: Document,
        spec: Spec,
        rollout: Progress | None,
        only: Collection[str] | None = None,
    ) -> tuple[FollowUp, Progress | None]:
        """Apply the spec to every cluster.

        Args:
            round_: the facts of the round.
            document: the MultiClusterResource, read live.
            spec: its spec.
            rollout: which revision each cluster gets; None if all get the newest.
            only: clusters to work on, where the last round left nothing to do on the others.

        Returns:
            The rounds that follow, and the rollout as it is now.

        Raises:
            IntentError: the intent cannot be stored; nothing was applied.
            KubeError: the hub refused a write.
        """
        # Read: what is wanted, and what is on record.
        clusters, behind = tuple(round_.fleet.clusters()), rollout.specs if rollout else None
        draft = await self.renderer.draft(spec, clusters, round_.fleet.hub, behind)
        facts = await off_loop(draft.wanted, plan_facts, round_, document, spec, draft, rollout)
        # Decide: what may be deleted, what is recorded, and what is written where.
        plan = await self._plan(round_, facts, spec, draft)
        decision = await off_loop(
            draft.wanted,
            decide,
            facts,
            plan,
            draft,
            spec,
            applied=entries.revisions(document.status),
            rollout=rollout,
            only=only,
        )
        # Execute: the record first, so that a crash loses no object (rule D2); then the clusters.
        await self._record(document, decision)
        before = document.status

        async def interim(outcomes: Sequence[ClusterOutcome]) -> None:
            await self._report_interim(round_, document, decision, outcomes, before)

        outcomes = await self.executor.run(round_, decision.work, interim)
        # Report: in the status, to people and programs, and to the queues.
        return await self._report(round_, document, decision, outcomes, before)

    async def _plan(self, round_: Round, facts: Facts, spec: Spec, draft: Draft) -> Plan:
        """Plan what goes; what labels or budget do not allow is held."""
        plan = await off_loop(draft.wanted, make_plan, facts)
        plan = await recheck(plan, spec.placement, round_.hub, draft.clusters)
        return await self.fuse.check(facts, plan, round_.hub)

    async def _record(self, document: Document, decision: Decision) -> None:
        rollout, is_confirmed = decision.rollout, decision.plan.is_confirmed
        if decision.must_record:
            recorded = await off_loop(
                decision.record,
                status.with_intent,
                document.status,
                decision.record,
                decision.bases,
                is_answered=is_confirmed,
                rollout=rollout.tree if rollout else None,
            )
            await document.write_status(recorded)
        if rollout is not None and rollout.is_changed:
            # Now: a later write of this round may conflict, and then the round begins anew.
            await self.announce.rollout(document, rollout.changes)
        if is_confirmed:
            await document.drop_confirmation()

    async def _report_interim(
        self,
        round_: Round,
        document: Document,
        decision: Decision,
        outcomes: Sequence[ClusterOutcome],
        before: Mapping[str, Any],
    ) -> None:
        """Report the outcomes so far while slow clusters work; the end makes up for a failure."""
        if await self.pace.wait(round_.owner.uid) is not None:
            return
        complete = complete_outcomes(decision, outcomes, before)
        with suppress(KubeError, IntentError):
            await _write(document, decision, complete, decision.rollout)

    async def _report(
        self,
        round_: Round,
        document: Document,
        decision: Decision,
        outcomes: Sequence[ClusterOutcome],
        before: Mapping[str, Any],
    ) -> tuple[FollowUp, Progress | None]:
        complete = complete_outcomes(decision, outcomes, before)
        begun, rollout = decision.rollout, _observed(decision, complete)
        for name in rollout.polled if rollout else ():
            await self.requeue(round_.owner, name, HEALTH_POLL)
        await _write(document, decision, complete, rollout)
        await self.pace.note(round_.owner.uid)
        note_held(decision.plan.hold, status.read_hold(before))
        await self.announce(document, complete, before)
        if begun is not None and rollout is not None:
            await self.announce.rollout(document, changes_of(begun.state, rollout.state))
        following = follow_up(decision, outcomes, complete)
        for name, wait in following.clusters.items():
            await self.requeue(round_.owner, name, wait)
        return following, rollout


def _observed(decision: Decision, complete: Sequence[ClusterOutcome]) -> Progress | None:
    """The rollout with what was found on the clusters that were worked on."""
    rollout, worked_on = decision.rollout, decision.work.keys()
    if rollout is None:
        return None
    return rollout.observed(
        decision.draft,
        [outcome for outcome in complete if outcome.name in worked_on],
        is_whole=rollout.state.updating.keys() <= worked_on | decision.draft.problems.keys(),
    )


async def _write(
    document: Document,
    decision: Decision,
    complete: Sequence[ClusterOutcome],
    rollout: Progress | None,
) -> None:
    tree = rollout.tree if rollout else None
    report = report_of(decision, complete, generation=document.generation, rollout=tree)
    built = await off_loop(report.inventory, status.build, report, document.status)
    await document.write_status(built)
