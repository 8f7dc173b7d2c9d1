"""Runs one round for all clusters: draft, plan, intent, apply, status."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from fleetbus.errors import KubeError
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.status import Report
from fleetbus_distributor.off_loop import off_loop
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.fleet_fuse import note_held
from fleetbus_distributor.plan.intent import Bases, Basis, Inventory, Owned, outdated_keys
from fleetbus_distributor.plan.plan import (
    Facts,
    HoldReason,
    Plan,
    make_plan,
    new_nonce,
    record,
    settle,
)
from fleetbus_distributor.plan.recheck_labels import recheck
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.render.spec import DeletionPolicy, DriftPolicy, Spec
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rollout.changes import changes_of
from fleetbus_distributor.rollout.rollouts import HEALTH_POLL, Progress
from fleetbus_distributor.rounds.observe import observe_outcomes
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.targets.outcome import (
    ClusterOutcome,
    LeftBehind,
    ObjectOutcome,
    State,
    earliest,
)
from fleetbus_distributor.targets.target import LATER, SOON


async def distribute(
    round_: Round,
    document: Document,
    spec: Spec,
    unjoined: frozenset[str],
    only: frozenset[str] | None = None,
) -> RoundResult:
    """Apply the spec to every cluster.

    Args:
        round_: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec.
        unjoined: clusters that were unjoined.
        only: clusters to work on, where the last round left nothing to do on the others.

    Raises:
        IntentError: the intent cannot be stored; nothing was applied.
        KubeError: the hub refused a write.
    """
    draft = await round_.draft(spec, tuple(round_.fleet.clusters()))
    facts = await off_loop(draft.wanted, _facts, round_, document, spec, draft, unjoined)
    plan = await _plan(round_, facts, spec, draft)
    needed, bases, is_on_record = await off_loop(draft.wanted, _record, facts, plan)
    rollout = round_.rollout
    is_moved = rollout is not None and rollout.is_changed
    if plan.is_confirmed or is_moved or not is_on_record:
        recorded = await off_loop(
            needed,
            status.with_intent,
            document.status,
            needed,
            bases,
            is_answered=plan.is_confirmed,
            rollout=rollout.tree if rollout else None,
        )
        await document.write_status(recorded)
    if rollout is not None and is_moved:
        # Now: a later write of this round may conflict, and then the round begins anew.
        await round_.announce.rollout(document, rollout.changes)
    if plan.is_confirmed:
        await document.drop_confirmation()
    round_ = replace(round_, inventory=needed)
    revisions = status.revisions(document.status)
    reporter = _Reporter(round_, document, draft, plan, needed, bases, revisions, document.status)
    work = await off_loop(needed, _work, draft, plan, needed, document, spec)
    if only is not None:
        reporter.skipped = draft.objects.keys() - only
        work = {name: one for name, one in work.items() if name in only}
    outcomes = await round_.run(work, reporter.interim)
    return await reporter.final(outcomes)


def _record(facts: Facts, plan: Plan) -> tuple[Inventory, dict[str, Basis], bool]:
    """The record before the first write, its bases, and whether it is stored already.

    Raises:
        IntentError: it cannot be stored.
    """
    needed = record(facts, plan)
    bases = settle(facts, plan, needed)
    intent.check_room(needed, bases)
    return needed, bases, intent.covers(facts.inventory, needed)


async def _plan(round_: Round, facts: Facts, spec: Spec, draft: Draft) -> Plan:
    plan = await off_loop(draft.wanted, make_plan, facts)
    hub = round_.fleet.cluster(round_.fleet.hub).live
    return await round_.fuse.check(
        facts, await recheck(plan, spec.placement, hub, draft.clusters), hub
    )


def _facts(
    round_: Round, document: Document, spec: Spec, draft: Draft, unjoined: frozenset[str]
) -> Facts:
    # What waits for its wave keeps what it has on record.
    kept = {n: [one.ref for one in round_.inventory.get(n, {}).values()] for n in draft.waiting}
    return Facts(
        wanted={**draft.wanted, **kept},
        inventory=round_.inventory,
        bases=intent.read_bases(document.status),
        present=_present(round_, document, draft),
        unselectable=_unselectable(spec, draft),
        unjoined=unjoined,
        unrendered=frozenset(draft.problems),
        uid=document.metadata["uid"],
        generation=document.generation,
        fuse=spec.policy.fuse,
        confirmed=document.confirmed,
        held=status.read_hold(document.status),
        nonce=new_nonce(),
        recreates=spec.policy.recreate,
        keeps_objects=spec.policy.deletion is DeletionPolicy.ORPHAN,
    )


def _present(round_: Round, document: Document, draft: Draft) -> dict[str, Basis]:
    """Why each cluster has its objects now.

    A cluster that keeps an earlier revision has the generation of that: the edit that made the
    newest one reaches it when its wave opens, and requests then what it drops (rule D8).
    """
    bases = intent.read_bases(document.status)
    placed = {member.name for member in draft.placed.targets}
    behind = round_.rollout.specs.keys() & placed if round_.rollout else ()
    return {
        info.name: Basis(
            bases[info.name].generation
            if info.name in behind and info.name in bases
            else document.generation,
            intent.digest_of(info.labels),
        )
        for info in draft.clusters
    }


def _unselectable(spec: Spec, draft: Draft) -> frozenset[str]:
    """Clusters that no change of labels could add to the placement."""
    placed = {member.name for member in draft.placed.targets}
    excluded = {cluster.name for cluster in spec.placement.exclude}
    has_selector = spec.placement.cluster_selector is not None
    names = {info.name for info in draft.clusters} - placed
    return frozenset(names & excluded if has_selector else names)


def _work(
    draft: Draft, plan: Plan, needed: Inventory, document: Document, spec: Spec
) -> dict[str, Work]:
    applied = status.revisions(document.status)
    corrects = spec.policy.drift is DriftPolicy.CORRECT
    work: dict[str, Work] = {}
    for name, objects in draft.objects.items():
        revision = draft.revisions[name]
        is_same = applied.get(name) == revision
        prune = _to_remove(plan, needed, name, draft.wanted[name])
        compares = is_same and not corrects
        work[name] = Work(objects, revision, prune, only_compare=compares, is_same=is_same)
    for name in plan.prune:
        work.setdefault(name, Work(prune=_to_remove(plan, needed, name, ())))
    return work


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The end of a round."""

    retry: timedelta | None
    """When to retry, or None."""
    is_settled: bool
    """If it waits for anything, an event on the hub announces that: no cluster need be polled."""
    rollout: Progress | None = None
    """The rollout, as it is now."""


def _to_remove(
    plan: Plan, needed: Inventory, cluster: str, wanted: Sequence[ObjectRef]
) -> list[Owned]:
    """Pruned objects, as they are on record by now; the apply deletes those to be recreated."""
    keys = {one.ref.key for one in plan.prune.get(cluster, ())} - {ref.key for ref in wanted}
    return [one for key, one in needed[cluster].items() if key in keys]


@dataclass(slots=True)
class _Reporter:
    """Turns outcomes into status, Kubernetes Events and the time of the next round."""

    round_: Round
    document: Document
    draft: Draft
    plan: Plan
    needed: Inventory
    bases: Bases
    revisions: Mapping[str, str]
    before: Mapping[str, Any]
    """The status before the round: it may be written several times in it."""
    skipped: Collection[str] = ()
    """Clusters where the last round left nothing to do."""

    async def interim(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """Report the outcomes so far while slow clusters work; `final` makes up for a failure."""
        if await self.round_.pace.wait(self.round_.owner.uid) is not None:
            return
        with suppress(KubeError, IntentError):
            await self._write(self._complete(outcomes))

    async def final(self, outcomes: Sequence[ClusterOutcome]) -> RoundResult:
        """Report the outcome of the round."""
        whole = self._complete(outcomes)
        before, begun = self.before, self.round_.rollout
        await self._observe(outcomes, whole)
        await self._write(whole)
        await self.round_.pace.note(self.round_.owner.uid)
        note_held(self.plan.hold, status.read_hold(before))
        await self.round_.announce(self.document, whole, before)
        if begun is not None and self.round_.rollout is not None:
            changes = changes_of(begun.state, self.round_.rollout.state)
            await self.round_.announce.rollout(self.document, changes)
        has_news = self._has_news(outcomes)
        retry = SOON if has_news else None
        is_settled = not has_news
        for one in whole:
            if one.retry is not None and self._concerns_only(one.name):
                await self.round_.requeue(self.round_.owner, one.name, one.retry)
                continue
            retry = earliest(retry, one.retry)
            is_settled &= one.retry is None or self._is_no_member(one.name)
        return RoundResult(retry, is_settled, self.round_.rollout)

    async def _observe(
        self, outcomes: Sequence[ClusterOutcome], whole: Sequence[ClusterOutcome]
    ) -> None:
        """Tell the rollout what was found."""
        rollout = self.round_.rollout
        if rollout is None:
            return
        done = {one.name for one in outcomes}
        rollout = observe_outcomes(
            rollout,
            self.draft,
            [one for one in whole if one.name in done],
            is_whole=rollout.state.updating.keys() <= done | self.draft.problems.keys(),
        )
        self.round_ = replace(self.round_, rollout=rollout)
        for name in rollout.polled:
            await self.round_.requeue(self.round_.owner, name, HEALTH_POLL)

    def _is_no_member(self, cluster: str) -> bool:
        """Whether a cluster has yet to join, or has left."""
        return cluster in self.draft.placed.unknown or cluster in self.plan.gone

    def _concerns_only(self, cluster: str) -> bool:
        """Whether a retry for this cluster concerns no other one."""
        shrinks = (self.plan.prune, self.plan.held, self.plan.doubted)
        return cluster in self.draft.objects and not any(cluster in share for share in shrinks)

    def _has_news(self, outcomes: Sequence[ClusterOutcome]) -> bool:
        """Whether other objects than planned turned out to need a replacement."""
        planned = {name: outdated_keys(self.needed.get(name, {})) for name in self.draft.objects}
        return any(
            outdated_keys(one.inventory) != planned[one.name]
            for one in outcomes
            if one.name in planned
        )

    async def _write(self, outcomes: Sequence[ClusterOutcome]) -> None:
        released = [
            LeftBehind(name, one.ref, "Unjoined")
            for name, owned in self.plan.released.items()
            for one in owned
        ]
        named = self._targets | set(self.draft.placed.unknown)
        shown = [one for one in outcomes if one.inventory or one.name in named]
        report = Report(
            generation=self.document.generation,
            outcomes=shown,
            inventory={one.name: one.inventory for one in outcomes if one.inventory},
            left_behind=[*released, *(left for one in outcomes for left in one.left_behind)],
            bases=self.bases,
            is_complete=not self.draft.problems,
            hold=self.plan.hold,
            held=self.plan.held,
            doubted=self.plan.doubted,
            warnings=self.draft.warnings,
            unused=self.draft.unused,
            placed=self._targets,
            rollout=self.round_.rollout.tree if self.round_.rollout else None,
        )
        built = await off_loop(report.inventory, status.build, report, self.document.status)
        await self.document.write_status(built)

    @property
    def _targets(self) -> frozenset[str]:
        return frozenset(member.name for member in self.draft.placed.targets)

    def _complete(self, outcomes: Sequence[ClusterOutcome]) -> list[ClusterOutcome]:
        """The outcomes of all clusters, also of those where nothing could be done."""
        applied = self.revisions
        whole = {one.name: status.keep_revision(one, applied.get(one.name, "")) for one in outcomes}
        for name in self.skipped:
            whole[name] = self._as_before(name)
        for name in self.draft.waiting:
            whole[name] = self._waiting(name)
        for name in self.draft.placed.unknown:
            whole.setdefault(name, self._unknown(name))
        for name, problem in self.draft.problems.items():
            whole[name] = self._idle(name, State.FAILED, problem.reason, problem.message)
        for name in self.plan.gone:
            whole[name] = self._gone(name)
        for name in self.needed:
            if name not in whole:
                whole[name] = self._pending_removal(name)
        reason = self.plan.hold.reason if self.plan.hold else HoldReason.FUSE
        retry = LATER if reason is HoldReason.UNREADABLE else None
        for name, owned in self.plan.held.items():
            _hold(whole[name], owned, reason, retry)
        for name, owned in self.plan.doubted.items():
            _hold(whole[name], owned, HoldReason.LABELS, LATER)
        return list(whole.values())

    def _idle(
        self, name: str, state: State, reason: str, message: str, *, retries: bool = False
    ) -> ClusterOutcome:
        retry = LATER if retries else None
        inventory = dict(self.needed.get(name, {}))
        revision = self.revisions.get(name, "")
        return ClusterOutcome(name, state, reason, message, retry, inventory, revision=revision)

    def _as_before(self, name: str) -> ClusterOutcome:
        before = status.entry_of(self.document.status, name)
        return replace(before, inventory=dict(self.needed.get(name, {})))

    def _waiting(self, name: str) -> ClusterOutcome:
        rollout = self.round_.rollout
        message = rollout.waits(name, has_objects=name in self.needed) if rollout else ""
        return self._idle(name, State.WAITING, status.WAVE_NOT_OPEN, message)

    def _unknown(self, name: str) -> ClusterOutcome:
        message = "no cluster of this name is in the fleet; it applies once one joins"
        return self._idle(name, State.WAITING, "UnknownCluster", message, retries=True)

    def _gone(self, name: str) -> ClusterOutcome:
        count = len(self.needed[name])
        message = (
            f"the cluster left the fleet without an unjoin; its {count} object(s) stay on record"
        )
        return self._idle(name, State.HELD, "ClusterGone", message, retries=True)

    def _pending_removal(self, name: str) -> ClusterOutcome:
        if name in self.plan.held or name in self.plan.doubted:
            return self._idle(name, State.APPLIED, "Applied", "")
        message = "nothing is deleted while a template cannot be rendered"
        return self._idle(name, State.HELD, "RenderFailed", message)


def _hold(
    outcome: ClusterOutcome, owned: Sequence[Owned], reason: HoldReason, retry: timedelta | None
) -> None:
    outcome.add(State.HELD, reason, _not_deleted(owned), retry)
    named = {one.ref.key for one in outcome.findings}
    outcome.findings += [
        ObjectOutcome(one.ref, State.HELD, reason, f"{one.ref} is not deleted")
        for one in owned
        if one.ref.key not in named
    ]


def _not_deleted(owned: Sequence[Owned]) -> str:
    return f"{len(owned)} object(s) are not deleted; see condition {status.HELD}"
