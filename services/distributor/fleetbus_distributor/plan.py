"""What one round does on each cluster: apply, prune, hold (rules D1, D7, D8).

Pure: the same facts give the same plan. A deletion needs an entry of the intent that the spec,
read live and rendered without any error, no longer names, on a cluster that is in the fleet.
Everything less than that is kept.

A deletion that follows from an edit of this very MultiClusterResource was asked for. Every other
one, because a cluster got other labels or because we render otherwise than before, is automatic:
it is limited here, and by the budget of the fleet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.intent import Bases, Basis, Inventory, Key, Owned
from fleetbus_distributor.model import Fuse
from fleetbus_distributor.render import ObjectRef

Share = Mapping[str, list[Owned]]
"""Cluster → objects on it."""


class HoldReason(StrEnum):
    """Why deletions wait for a person."""

    FUSE = "DeletionFuse"
    FLEET = "FleetBudget"
    """The budget of the whole fleet is spent."""
    EMPTY_SELECTION = "EmptySelection"
    NAMESPACE = "NamespaceTerminating"
    DEFINITION = "DefinitionTerminating"
    UNREADABLE = "CauseUnknown"
    """It cannot be read why the MultiClusterResource goes, or what the fleet has deleted lately."""
    LABELS = "LabelsNotConfirmed"
    """Not for a person: it ends when the fleet and the hub agree about the cluster's labels."""


@dataclass(frozen=True, slots=True)
class Hold:
    """That deletions wait for a person, and what this person has to confirm."""

    reason: HoldReason
    plan_hash: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the plan depends on."""

    wanted: Mapping[str, Sequence[ObjectRef]]
    """Per placed cluster of the fleet: what shall be there."""
    inventory: Inventory
    bases: Bases = field(default_factory=dict[str, Basis])
    """As they are on record."""
    present: Bases
    """Of every cluster of the fleet: this generation, and its labels now."""
    unselectable: frozenset[str] = frozenset()
    """Clusters that the spec places nothing on, whatever their labels are."""
    left: frozenset[str] = frozenset()
    """Clusters that left by an unjoin, which wrote a record."""
    complete: bool = True
    """Every placed cluster was rendered without an error (rule D1)."""
    uid: str = ""
    """Of the MultiClusterResource."""
    generation: int
    fuse: Fuse
    confirmed: str = ""
    held: Hold | None = None
    """As the last round left it."""
    keeps_objects: bool = False
    """Nothing is deleted (policy Orphan), so there is nothing to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do; `prune`, `held` and `doubted` never name the same object."""

    prune: Share = field(default_factory=dict[str, list[Owned]])
    edited: Share = field(default_factory=dict[str, list[Owned]])
    """Of `prune`, what an edit of the spec dropped."""
    automatic: Share = field(default_factory=dict[str, list[Owned]])
    """Of `prune`, what nobody asked for and nobody confirmed: it needs a share of the budget."""
    held: Share = field(default_factory=dict[str, list[Owned]])
    doubted: Share = field(default_factory=dict[str, list[Owned]])
    """What the labels of its cluster, read live, do not confirm."""
    released: Share = field(default_factory=dict[str, list[Owned]])
    """Left behind on clusters that were unjoined."""
    gone: Sequence[str] = ()
    """Clusters that vanished without an unjoin: their entries are kept (rule D7)."""
    hold: Hold | None = None
    plan_hash: str = ""
    """Of what would be held; the annotation that confirms it has this value."""


def make_plan(facts: Facts) -> Plan:
    """Compare what is wanted with what is on record."""
    absent = [name for name in facts.inventory if name not in facts.present]
    released = {name: list(facts.inventory[name].values()) for name in absent if name in facts.left}
    gone = sorted(name for name in absent if name not in facts.left)
    if not facts.complete:
        return Plan(released=released, gone=gone)
    surplus = _surplus(facts)
    edited = _select(surplus, lambda name, one: _is_edit(facts, name, one))
    others = _select(surplus, lambda name, one: not _is_edit(facts, name, one))
    plan = Plan(
        prune=surplus,
        edited=edited,
        automatic=others,
        released=released,
        gone=gone,
        plan_hash=_hash(facts, gone),
    )
    if facts.keeps_objects or facts.confirmed == plan.plan_hash:
        return replace(plan, automatic={})
    return _hold(facts, plan)


def _surplus(facts: Facts) -> dict[str, list[Owned]]:
    surplus: dict[str, list[Owned]] = {}
    for name, entries in facts.inventory.items():
        if name not in facts.present:
            continue
        wanted: set[Key] = {ref.key for ref in facts.wanted.get(name, ())}
        if found := [owned for key, owned in entries.items() if key not in wanted]:
            surplus[name] = found
    return surplus


def _is_edit(facts: Facts, cluster: str, owned: Owned) -> bool:
    """Whether a surplus object is no longer wanted because the spec was edited.

    It was wanted by another generation of the spec, and the labels of its cluster are what they
    were then, or do not matter. Once judged so it stays so, whatever labels become meanwhile.
    """
    if owned.dropped:
        return True
    before = facts.bases.get(cluster)
    if before is None or before.generation == facts.generation:
        return False
    return cluster in facts.unselectable or before.labels == facts.present[cluster].labels


def _hold(facts: Facts, plan: Plan) -> Plan:
    """Rule D8: each limit alone holds; no cluster at all holds even what was asked for."""
    if not facts.wanted and plan.prune:
        hold = explain(facts, plan, HoldReason.EMPTY_SELECTION)
        return replace(plan, prune={}, edited={}, automatic={}, held=plan.prune, hold=hold)
    if not plan.automatic:
        return plan
    if facts.held:
        # A person was asked. That time passes is no answer, nor is an edit that does not ask for
        # it, nor another cluster that comes or goes meanwhile: these only change the plan's name.
        is_empty = facts.held.reason is HoldReason.EMPTY_SELECTION
        return hold_automatic(facts, plan, HoldReason.FUSE if is_empty else facts.held.reason)
    objects, fuse = count(plan.automatic), facts.fuse
    is_much = objects > fuse.objects or objects * 100 > fuse.percent * count(facts.inventory)
    if is_much or len(plan.automatic) >= fuse.clusters:
        return hold_automatic(facts, plan, HoldReason.FUSE)
    return plan


def hold_automatic(facts: Facts, plan: Plan, reason: HoldReason) -> Plan:
    """The plan without what nobody asked for."""
    hold = explain(facts, plan, reason)
    return replace(plan, prune=plan.edited, automatic={}, held=plan.automatic, hold=hold)


def explain(facts: Facts, plan: Plan, reason: HoldReason) -> Hold:
    """Say what is held, why, and what releases it."""
    is_all = reason is HoldReason.EMPTY_SELECTION
    share = plan.prune if is_all else plan.automatic
    asked = "" if is_all else ", and no edit of this MultiClusterResource asks for it"
    message = (
        f"{count(share)} of {count(facts.inventory)} objects on {len(share)} cluster(s) would be "
        f"deleted{asked}: {_why(reason, facts.fuse)}; nothing of it is deleted until the "
        f"annotation {CONFIRM_PRUNE_ANNOTATION} is {plan.plan_hash!r}"
    )
    return Hold(reason, plan.plan_hash, message)


def _why(reason: HoldReason, fuse: Fuse) -> str:
    if reason is HoldReason.EMPTY_SELECTION:
        return "the placement names no cluster of the fleet any more"
    if reason is HoldReason.FLEET:
        return "the whole fleet's budget of such deletions is spent"
    if reason is HoldReason.UNREADABLE:
        return "the fleet's budget of such deletions cannot be read"
    return (
        f"spec.policy.fuse holds from {fuse.clusters} clusters on, above {fuse.objects} objects "
        f"and above {fuse.percent} %"
    )


def settle(facts: Facts, plan: Plan, needed: Inventory) -> dict[str, Basis]:
    """The bases after a plan: this one, but the old one where something waits to be asked for.

    A later edit must not make that an explicit deletion which an earlier change of labels caused.
    """
    shares = (plan.prune, plan.held, plan.doubted)
    undecided = {name for share in shares for name in share if share[name] != plan.edited.get(name)}
    settled: dict[str, Basis] = {}
    for name in needed:
        is_new = name not in facts.inventory
        is_settled = facts.complete and name not in undecided
        present = facts.present.get(name)
        found = present if present and (is_new or is_settled) else facts.bases.get(name)
        if found and name in undecided and found == present:
            # Neither an edit nor labels: we render otherwise than before. No labels are like these.
            found = replace(found, labels="")
        if found:
            settled[name] = found
    return settled


def count(share: Mapping[str, Sequence[Owned] | Mapping[Key, Owned]]) -> int:
    """Objects on all clusters together."""
    return sum(map(len, share.values()))


def without(share: Share, names: Mapping[str, object]) -> dict[str, list[Owned]]:
    """A share without some clusters."""
    return {name: owned for name, owned in share.items() if name not in names}


def _select(share: Share, predicate: Callable[[str, Owned], bool]) -> dict[str, list[Owned]]:
    chosen = {name: [one for one in owned if predicate(name, one)] for name, owned in share.items()}
    return {name: owned for name, owned in chosen.items() if owned}


def _hash(facts: Facts, gone: Sequence[str]) -> str:
    """Name what a person confirms: this generation, and what shall remain on which cluster.

    What remains, and not what goes: a round that was interrupted half-way is still the round that
    was confirmed, while any other wish gets another name.
    """
    remains = {name: sorted(ref.key for ref in refs) for name, refs in facts.wanted.items()}
    return hash_plan(facts.uid, facts.generation, remains, sorted(gone))


def hash_plan(*parts: object) -> str:
    """Name a plan by everything that it depends on."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
