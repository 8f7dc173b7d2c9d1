"""Decides what a round for all clusters records and writes (pure).

Its facts are the draft of what is wanted, what is on record, and the plan of what is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Bases, Basis, Inventory, Owned
from fleetbus_distributor.plan.plan import Facts, Plan, new_nonce, record, settle
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.render.spec import DeletionPolicy, Spec
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rollout.rollouts import Progress
from fleetbus_distributor.rounds.round import Round, Work, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decisions of a round for all clusters; nothing of it has happened yet."""

    draft: Draft
    plan: Plan
    record: Inventory
    """The intent, as it has to be on record before the first write (rule D2)."""
    bases: Bases = field(default_factory=dict[str, Basis])
    """Bases of the record."""
    must_record: bool = False
    applied: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cluster → the revision that was last applied there completely."""
    work: Mapping[str, Work] = field(default_factory=dict[str, Work])
    skipped: frozenset[str] = frozenset()
    """Clusters where the last round left nothing to do."""
    rollout: Progress | None = None

    @property
    def placed(self) -> frozenset[str]:
        """The clusters of the fleet that the placement names."""
        return frozenset(member.name for member in self.draft.placed.targets)


def plan_facts(
    round_: Round, document: Document, spec: Spec, draft: Draft, rollout: Progress | None
) -> Facts:
    """Collect the facts that a plan depends on."""
    inventory, bases = round_.inventory, intent.read_bases(document.status)
    # What waits for its wave keeps what it has on record.
    waiting = {
        name: [owned.ref for owned in inventory.get(name, {}).values()] for name in draft.waiting
    }
    return Facts(
        wanted={**draft.wanted, **waiting},
        inventory=inventory,
        bases=bases,
        present=_present(document.generation, bases, draft, rollout),
        unselectable=_unselectable(spec, draft),
        unjoined=round_.unjoined,
        unrendered=frozenset(draft.problems),
        uid=document.metadata["uid"],
        generation=document.generation,
        fuse=spec.policy.fuse,
        confirmed=document.confirmed,
        hold=status.read_hold(document.status),
        nonce=new_nonce(),
        recreates=spec.policy.recreate,
        keeps_objects=spec.policy.deletion is DeletionPolicy.ORPHAN,
    )


def _present(
    generation: int, bases: Bases, draft: Draft, rollout: Progress | None
) -> dict[str, Basis]:
    """Why each cluster has its objects now.

    A cluster that keeps an earlier revision has the generation of that: the edit that made the
    newest one reaches it when its wave opens, and requests then what it drops (rule D8).
    """
    placed = {member.name for member in draft.placed.targets}
    behind = rollout.specs.keys() & placed if rollout else ()
    return {
        info.name: Basis(
            bases[info.name].generation
            if info.name in behind and info.name in bases
            else generation,
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


def decide(
    facts: Facts,
    plan: Plan,
    draft: Draft,
    spec: Spec,
    *,
    applied: Mapping[str, str],
    rollout: Progress | None = None,
    only: Collection[str] | None = None,
) -> Decision:
    """Decide what is recorded, and what is done on which cluster.

    Args:
        facts: what the plan was made from.
        plan: what is deleted, and what is held.
        draft: what is wanted.
        spec: the spec.
        applied: cluster → the revision that was last applied there completely.
        rollout: which revision each cluster gets; None if all get the newest.
        only: clusters to work on, where the last round left nothing to do on the others.

    Raises:
        IntentError: the record would be too large to be stored.
    """
    needed = record(facts, plan)
    bases = settle(facts, plan, needed)
    intent.check_room(needed, bases)
    is_moved = rollout is not None and rollout.is_changed
    work = _work(draft, plan, needed, spec, applied)
    if only is not None:
        work = {name: share for name, share in work.items() if name in only}
    return Decision(
        draft=draft,
        plan=plan,
        record=needed,
        bases=bases,
        must_record=plan.is_confirmed or is_moved or not intent.covers(facts.inventory, needed),
        applied=applied,
        work=work,
        skipped=frozenset(draft.objects.keys() - only) if only is not None else frozenset(),
        rollout=rollout,
    )


def _work(
    draft: Draft, plan: Plan, needed: Inventory, spec: Spec, applied: Mapping[str, str]
) -> dict[str, Work]:
    """Every cluster that was rendered, and every other one where something goes."""
    work = {
        name: work_of(
            name,
            draft,
            spec,
            applied=applied.get(name, ""),
            recorded=needed.get(name, {}),
            prune=_to_remove(plan, needed, name, draft.wanted[name]),
        )
        for name in draft.objects
    }
    for name in plan.prune:
        if name not in work:
            prune = _to_remove(plan, needed, name, ())
            work[name] = Work(recorded=needed.get(name, {}), prune=prune)
    return work


def _to_remove(
    plan: Plan, needed: Inventory, cluster: str, wanted: Sequence[ObjectRef]
) -> list[Owned]:
    """Pruned objects, as they are on record by now; the apply deletes those to be recreated."""
    pruned = {owned.ref.key for owned in plan.prune.get(cluster, ())}
    keys = pruned - {ref.key for ref in wanted}
    return [owned for key, owned in needed[cluster].items() if key in keys]
