"""One round for a MultiClusterResource that lives: wish, plan, intent, apply, status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from fleetbus.errors import KubeError
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.kube_events import notices_of
from fleetbus_distributor.hub.status import Report
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.fleet_fuse import note_held
from fleetbus_distributor.plan.intent import Bases, Basis, Inventory, Owned, outdated
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
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.targets.outcome import ClusterOutcome, LeftBehind, State, earliest
from fleetbus_distributor.targets.target import LATER, SOON


async def distribute(turn: Round, document: Document, spec: Spec, left: frozenset[str]) -> Ending:
    """Bring every cluster in line with the spec.

    Args:
        turn: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec.
        left: clusters that were unjoined.

    Raises:
        IntentError: the intent cannot be stored; nothing was applied.
        KubeError: the hub refused a write.
    """
    wish = await turn.drafts.draft(spec, tuple(turn.fleet.clusters()), turn.fleet.hub)
    facts = _facts(turn, document, spec, wish, left)
    plan = await _plan(turn, facts, spec, wish)
    needed = record(facts, plan)
    bases = settle(facts, plan, needed)
    intent.check_room(needed, bases)
    if plan.is_confirmed or not intent.covers(turn.inventory, needed):
        recorded = status.with_intent(document.status, needed, bases, is_answered=plan.is_confirmed)
        await document.write_status(recorded)
    if plan.is_confirmed:
        await document.drop_confirmation()
    turn = replace(turn, inventory=needed)
    told = _Telling(turn, document, wish, plan, needed, bases, status.revisions(document.status))
    outcomes = await turn.run(_work(wish, plan, needed, document, spec), told.interim)
    return await told.final(outcomes)


async def _plan(turn: Round, facts: Facts, spec: Spec, wish: Draft) -> Plan:
    plan = make_plan(facts)
    hub = turn.fleet.cluster(turn.fleet.hub).live
    return await turn.fuse.check(
        facts, await recheck(plan, spec.placement, hub, wish.clusters), hub
    )


def _facts(turn: Round, document: Document, spec: Spec, wish: Draft, left: frozenset[str]) -> Facts:
    return Facts(
        wanted=wish.wanted,
        inventory=turn.inventory,
        bases=intent.read_bases(document.status),
        present={
            info.name: Basis(document.generation, intent.digest_of(info.labels))
            for info in wish.clusters
        },
        unselectable=_unselectable(spec, wish),
        left=left,
        unrendered=frozenset(wish.problems),
        uid=document.metadata["uid"],
        generation=document.generation,
        fuse=spec.policy.fuse,
        confirmed=document.confirmed,
        held=status.read_hold(document.status),
        nonce=new_nonce(),
        recreates=spec.policy.recreate,
        keeps_objects=spec.policy.deletion is DeletionPolicy.ORPHAN,
    )


def _unselectable(spec: Spec, wish: Draft) -> frozenset[str]:
    """Clusters that no change of labels could bring into the placement."""
    placed = {member.name for member in wish.placed.targets}
    excluded = {cluster.name for cluster in spec.placement.exclude}
    has_selector = spec.placement.cluster_selector is not None
    names = {info.name for info in wish.clusters} - placed
    return frozenset(names & excluded if has_selector else names)


def _work(
    wish: Draft, plan: Plan, needed: Inventory, document: Document, spec: Spec
) -> dict[str, Work]:
    applied = status.revisions(document.status)
    corrects = spec.policy.drift is DriftPolicy.CORRECT
    work: dict[str, Work] = {}
    for name, objects in wish.objects.items():
        revision = wish.revisions[name]
        is_same = applied.get(name) == revision
        prune = _to_remove(plan, needed, name, wish.wanted[name])
        work[name] = Work(objects, revision, prune, only_compare=is_same and not corrects)
    for name in plan.prune:
        work.setdefault(name, Work(prune=_to_remove(plan, needed, name, ())))
    return work


@dataclass(frozen=True, slots=True)
class Ending:
    """How a round ended: when to look again, and at what."""

    retry: timedelta | None
    """When something outside may have changed, or None."""
    is_settled: bool
    """What it waits for, if anything, is told by the hub: no cluster need be asked for it."""


def _to_remove(
    plan: Plan, needed: Inventory, cluster: str, wanted: Sequence[ObjectRef]
) -> list[Owned]:
    """What goes for good, as it is on record by now; its apply deletes what is created anew."""
    keys = {one.ref.key for one in plan.prune.get(cluster, ())} - {ref.key for ref in wanted}
    return [one for key, one in needed[cluster].items() if key in keys]


@dataclass(slots=True)
class _Telling:
    """Turns outcomes into status, Events and the time of the next look."""

    turn: Round
    document: Document
    wish: Draft
    plan: Plan
    needed: Inventory
    bases: Bases
    revisions: Mapping[str, str]

    async def interim(self, outcomes: Sequence[ClusterOutcome]) -> None:
        """Tell what is known while slow clusters work; the final word repairs a failure here."""
        with suppress(KubeError, IntentError):
            await self._write(self._whole(outcomes))

    async def final(self, outcomes: Sequence[ClusterOutcome]) -> Ending:
        """Tell the outcome of the round, once and for all."""
        whole = self._whole(outcomes)
        before = self.document.status
        await self._write(whole)
        note_held(self.plan.hold, status.read_hold(before))
        await self.document.tell(notices_of(whole, before))
        has_news = self._has_news(outcomes)
        retry = SOON if has_news else None
        is_settled = not has_news
        for one in whole:
            if one.retry is not None and self._is_its_own(one.name):
                await self.turn.wake(self.turn.owner, one.name, one.retry)
                continue
            retry = earliest(retry, one.retry)
            is_settled &= one.retry is None or self._is_no_member(one.name)
        return Ending(retry, is_settled)

    def _is_no_member(self, cluster: str) -> bool:
        """Whether a cluster has yet to join, or has left."""
        return cluster in self.wish.placed.unknown or cluster in self.plan.gone

    def _is_its_own(self, cluster: str) -> bool:
        """Whether what a cluster waits for concerns no other: then nobody else is asked again."""
        shrinks = (self.plan.prune, self.plan.held, self.plan.doubted)
        return cluster in self.wish.objects and not any(cluster in share for share in shrinks)

    def _has_news(self, outcomes: Sequence[ClusterOutcome]) -> bool:
        """Whether other objects than planned for turned out to need a replacement, or none."""
        planned = {name: outdated(self.needed.get(name, {})) for name in self.wish.objects}
        return any(
            outdated(one.inventory) != planned[one.name] for one in outcomes if one.name in planned
        )

    async def _write(self, outcomes: Sequence[ClusterOutcome]) -> None:
        released = [
            LeftBehind(name, one.ref, "Unjoined")
            for name, owned in self.plan.released.items()
            for one in owned
        ]
        named = self._targets | set(self.wish.placed.unknown)
        shown = [one for one in outcomes if one.inventory or one.name in named]
        report = Report(
            generation=self.document.generation,
            outcomes=shown,
            inventory={one.name: one.inventory for one in outcomes if one.inventory},
            left_behind=[*released, *(left for one in outcomes for left in one.left_behind)],
            bases=self.bases,
            is_complete=not self.wish.problems,
            hold=self.plan.hold,
            held=self.plan.held,
            doubted=self.plan.doubted,
            warnings=self.wish.warnings,
            placed=self._targets,
        )
        await self.document.write_status(status.build(report, self.document.status))

    @property
    def _targets(self) -> frozenset[str]:
        return frozenset(member.name for member in self.wish.placed.targets)

    def _whole(self, outcomes: Sequence[ClusterOutcome]) -> list[ClusterOutcome]:
        """The worked clusters, and those that nothing could be done for."""
        applied = self.revisions
        whole = {one.name: status.keep_revision(one, applied.get(one.name, "")) for one in outcomes}
        for name in self.wish.placed.unknown:
            whole.setdefault(name, self._unknown(name))
        for name, problem in self.wish.problems.items():
            whole[name] = self._idle(name, State.FAILED, problem.reason, problem.message)
        for name in self.plan.gone:
            whole[name] = self._gone(name)
        for name in self.needed:
            if name not in whole:
                whole[name] = self._waiting_to_go(name)
        reason = self.plan.hold.reason if self.plan.hold else HoldReason.FUSE
        retry = LATER if reason is HoldReason.UNREADABLE else None
        for name, owned in self.plan.held.items():
            whole[name].note(State.HELD, reason, _not_deleted(owned), retry)
        for name, owned in self.plan.doubted.items():
            whole[name].note(State.HELD, HoldReason.LABELS, _not_deleted(owned), LATER)
        return list(whole.values())

    def _idle(
        self, name: str, state: State, reason: str, message: str, *, looks_again: bool = False
    ) -> ClusterOutcome:
        retry = LATER if looks_again else None
        inventory = dict(self.needed.get(name, {}))
        revision = self.revisions.get(name, "")
        return ClusterOutcome(name, state, reason, message, retry, inventory, revision=revision)

    def _unknown(self, name: str) -> ClusterOutcome:
        message = "no cluster of this name is in the fleet; it is applied when one joins"
        return self._idle(name, State.WAITING, "UnknownCluster", message, looks_again=True)

    def _gone(self, name: str) -> ClusterOutcome:
        count = len(self.needed[name])
        message = (
            f"the cluster left the fleet without an unjoin; its {count} object(s) stay on record"
        )
        return self._idle(name, State.HELD, "ClusterGone", message, looks_again=True)

    def _waiting_to_go(self, name: str) -> ClusterOutcome:
        if name in self.plan.held or name in self.plan.doubted:
            return self._idle(name, State.APPLIED, "Applied", "")
        message = "nothing is deleted while a template cannot be rendered"
        return self._idle(name, State.HELD, "RenderFailed", message)


def _not_deleted(owned: Sequence[Owned]) -> str:
    return f"{len(owned)} object(s) are not deleted; see condition {status.HELD}"
