"""Plans what one round prunes, holds and keeps on each cluster (rules D1, D7, D8).

Pure: the same facts give the same plan. A deletion needs an entry of the intent that the spec, read
live and rendered without any error, no longer names, on a cluster that is in the fleet. Everything
else is kept.

A deletion that follows from an edit of this very MultiClusterResource is requested. Every other
one, because a cluster got other labels or because a new version renders differently, is automatic:
it is limited here, and by the budget of the fleet. Deleting an object to recreate it (policy
recreate) is a deletion like the others.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.plan.intent import Bases, Basis, Inventory, Key, Mark, Owned
from fleetbus_distributor.render.spec import FusePolicy
from fleetbus_distributor.render.template import ObjectRef

Share = Mapping[str, list[Owned]]
"""Cluster → objects on it."""


class HoldReason(StrEnum):
    """Why deletions are held until a person confirms them."""

    FUSE = "DeletionFuse"
    FLEET = "FleetBudget"
    """The budget of the whole fleet is spent."""
    EMPTY_SELECTION = "EmptySelection"
    NAMESPACE = "NamespaceTerminating"
    DEFINITION = "DefinitionTerminating"
    UNREADABLE = "CauseUnknown"
    """Why the MultiClusterResource is deleted, or the fleet's budget, cannot be read."""
    LABELS = "LabelsNotConfirmed"
    """Ends without a person, when fleet and hub agree about the labels of the cluster."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Held deletions, and what a person has to confirm."""

    reason: HoldReason
    plan_hash: str
    message: str = ""
    nonce: str = ""
    """Part of the plan hash, and new for every hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a plan depends on."""

    wanted: Mapping[str, Sequence[ObjectRef]]
    """Per placed cluster of the fleet: what is to be there."""
    inventory: Inventory
    bases: Bases = field(default_factory=dict[str, Basis])
    """As they are on record."""
    present: Bases
    """For every cluster of the fleet: this generation, and its labels now."""
    unselectable: frozenset[str] = frozenset()
    """Clusters that the spec cannot place anything on, whatever their labels are."""
    unjoined: frozenset[str] = frozenset()
    """Clusters that left by an unjoin."""
    unrendered: frozenset[str] = frozenset()
    """Placed clusters that could not be rendered: while there are any, nothing is pruned (D1)."""
    uid: str = ""
    """UID of the MultiClusterResource."""
    generation: int
    fuse: FusePolicy
    confirmed: str = ""
    hold: Hold | None = None
    """As the last round left it."""
    nonce: str = ""
    """Random, for a new hold."""
    recreates: bool = False
    """Policy recreate."""
    keeps_objects: bool = False
    """Policy Orphan: what is no longer wanted is not deleted, so there is nothing to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of a round; nothing is both in `prune` and in `held` or `doubted`."""

    evaluated: Inventory = field(default_factory=dict[str, dict[Key, Owned]])
    """The record, with the marks that apply from this round on."""
    prune: Share = field(default_factory=dict[str, list[Owned]])
    """Objects that are deleted, for good or to be recreated."""
    requested: Share = field(default_factory=dict[str, list[Owned]])
    """The part of `prune` that an edit or a person requested, or that is only given up."""
    automatic: Share = field(default_factory=dict[str, list[Owned]])
    """The part of `prune` that nobody requested or confirmed: it needs a share of the budget."""
    confirmable: Share = field(default_factory=dict[str, list[Owned]])
    """Objects that a person confirms if they are held; `plan_hash` identifies them."""
    held: Share = field(default_factory=dict[str, list[Owned]])
    doubted: Share = field(default_factory=dict[str, list[Owned]])
    """Objects whose deletion the live labels of their cluster do not confirm."""
    released: Share = field(default_factory=dict[str, list[Owned]])
    """Left behind on clusters that were unjoined."""
    gone: Sequence[str] = ()
    """Clusters that vanished without an unjoin: their entries are kept (rule D7)."""
    hold: Hold | None = None
    is_confirmed: bool = False
    """A person has just confirmed it: that is recorded, and the hold ends."""
    plan_hash: str = ""
    nonce: str = ""


def make_plan(facts: Facts) -> Plan:
    """Compare the wanted objects with the record."""
    absent = [name for name in facts.inventory if name not in facts.present]
    released = {
        name: list(facts.inventory[name].values()) for name in absent if name in facts.unjoined
    }
    gone = sorted(name for name in absent if name not in facts.unjoined)
    evaluated = {
        name: _evaluate_all(facts, name) for name in facts.inventory if name not in released
    }
    plan = Plan(evaluated=evaluated, released=released, gone=gone)
    if facts.unrendered:
        return plan
    leaving = {name: list(_leaving(facts, name, entries)) for name, entries in evaluated.items()}
    prune = _select(leaving, lambda _one: True)
    automatic = _select(prune, lambda owned: _is_automatic(facts, owned))
    requested = _select(prune, lambda owned: not _is_automatic(facts, owned))
    confirmable = automatic
    if not facts.wanted and not facts.keeps_objects:
        confirmable = _select(prune, lambda owned: owned.mark is not Mark.CONFIRMED)
    plan_hash, nonce = hash_plan(facts.hold, facts.nonce, *_parts(facts, gone, confirmable))
    plan = replace(
        plan,
        prune=prune,
        requested=requested,
        automatic=automatic,
        confirmable=confirmable,
        plan_hash=plan_hash,
        nonce=nonce,
    )
    if confirmable and facts.confirmed == plan_hash:
        return replace(plan, requested=prune, automatic={}, is_confirmed=True)
    return _hold(facts, plan)


def _evaluate_all(facts: Facts, cluster: str) -> dict[Key, Owned]:
    entries = facts.inventory[cluster]
    if cluster not in facts.present or cluster in facts.unrendered:
        return entries
    keys = {ref.key for ref in facts.wanted.get(cluster, ())}
    return {
        key: replace(
            owned,
            mark=_mark_wanted(facts, cluster, owned.mark)
            if key in keys
            else _mark_surplus(facts, cluster, owned.mark),
        )
        for key, owned in entries.items()
    }


def _mark_surplus(facts: Facts, cluster: str, mark: Mark) -> Mark:
    """Mark an object that is no longer wanted: dropped by an edit of the spec, or not.

    An edit dropped it if another generation of the spec wanted it, and the labels of its cluster
    have not changed since, or do not matter. The mark stays, whatever the labels become later.
    """
    if mark in (Mark.DROPPED, Mark.CONFIRMED):
        return mark
    before, now = facts.bases.get(cluster), facts.present[cluster]
    if before is None or before.generation == now.generation:
        return Mark.UNREQUESTED
    if cluster in facts.unselectable:
        return Mark.DROPPED
    has_same_labels = before.labels == now.labels
    return Mark.DROPPED if has_same_labels and mark is not Mark.UNREQUESTED else Mark.UNREQUESTED


def _mark_wanted(facts: Facts, cluster: str, mark: Mark) -> Mark:
    """Mark a wanted object: it may be replaced only if an edit alone has changed it.

    The mark stays until the change is applied, so that neither an edit after a relabelling nor a
    relabelling after an edit makes both of them requested.
    """
    if mark is Mark.OUTDATED:
        return mark if facts.recreates else Mark.RELABELLED
    if mark is Mark.RELABELLED:
        return mark
    before, now = facts.bases.get(cluster), facts.present[cluster]
    if before is None or before.labels != now.labels:
        return Mark.RELABELLED
    if before.generation != now.generation or mark is Mark.REPLACEABLE:
        return Mark.REPLACEABLE
    return Mark.NONE


def _leaving(facts: Facts, cluster: str, entries: Mapping[Key, Owned]) -> Iterator[Owned]:
    if cluster not in facts.present:
        return
    keys = {ref.key for ref in facts.wanted.get(cluster, ())}
    yield from (owned for key, owned in entries.items() if key not in keys or _is_outdated(owned))


def _is_outdated(owned: Owned) -> bool:
    return owned.mark is Mark.OUTDATED


def _is_automatic(facts: Facts, owned: Owned) -> bool:
    if facts.keeps_objects and not _is_outdated(owned):
        return False
    return owned.mark not in (Mark.DROPPED, Mark.CONFIRMED)


def _hold(facts: Facts, plan: Plan) -> Plan:
    """Hold what exceeds any limit; without any cluster even what was requested (rule D8)."""
    if not facts.wanted and not facts.keeps_objects and plan.confirmable:
        confirmed = _select(plan.prune, lambda owned: owned.mark is Mark.CONFIRMED)
        return hold_automatic(facts, replace(plan, requested=confirmed), HoldReason.EMPTY_SELECTION)
    if not plan.automatic:
        return plan
    if facts.hold and facts.hold.reason is not HoldReason.UNREADABLE:
        # A person has to answer. Time is no answer, nor is an edit that does not request it, nor
        # another cluster that comes or goes meanwhile: these only change the hash of the plan.
        is_empty = facts.hold.reason is HoldReason.EMPTY_SELECTION
        return hold_automatic(facts, plan, HoldReason.FUSE if is_empty else facts.hold.reason)
    objects, fuse = count(plan.automatic), facts.fuse
    is_much = objects > fuse.objects or objects * 100 > fuse.percent * count(facts.inventory)
    if is_much or len(plan.automatic) >= fuse.clusters:
        return hold_automatic(facts, plan, HoldReason.FUSE)
    return plan


def hold_automatic(facts: Facts, plan: Plan, reason: HoldReason) -> Plan:
    """Take everything that nobody requested out of a plan."""
    return replace(
        plan,
        prune=plan.requested,
        automatic={},
        held=plan.confirmable,
        doubted=without(plan.doubted, plan.confirmable),
        hold=_explain(facts, plan, reason),
    )


def _explain(facts: Facts, plan: Plan, reason: HoldReason) -> Hold:
    """Explain what is held, why, and what releases it."""
    share = plan.confirmable
    is_all = reason is HoldReason.EMPTY_SELECTION
    unrequested = "" if is_all else ", and no edit of this MultiClusterResource requests that"
    outdated = count(_select(share, _is_outdated))
    recreated = (
        f" ({outdated} to be recreated, because a changed field is immutable)" if outdated else ""
    )
    message = (
        f"{count(share)} of {count(facts.inventory)} objects on {len(share)} cluster(s) would be "
        f"deleted{recreated}{unrequested}: {_why(reason, facts.fuse)}; nothing of it is deleted "
        f"until the annotation {CONFIRM_PRUNE_ANNOTATION} is {plan.plan_hash!r}"
    )
    return Hold(reason, plan.plan_hash, message, plan.nonce)


def _why(reason: HoldReason, fuse: FusePolicy) -> str:
    if reason is HoldReason.EMPTY_SELECTION:
        return "the placement no longer names any cluster of the fleet"
    if reason is HoldReason.FLEET:
        return "the fleet-wide budget of such deletions is spent"
    if reason is HoldReason.UNREADABLE:
        return "the fleet-wide budget of such deletions cannot be read"
    return (
        f"spec.policy.fuse holds deletions on {fuse.clusters} clusters or more, of more than "
        f"{fuse.objects} objects, or of more than {fuse.percent} %"
    )


def record(facts: Facts, plan: Plan) -> Inventory:
    """The record before the first write: all that was or is wanted, with its marks.

    What the limits or a person allowed is marked, so that this very object is deleted, and no
    other, however many rounds it takes.
    """
    result = {name: dict(entries) for name, entries in plan.evaluated.items()}
    for name in plan.doubted:
        result[name] = dict(facts.inventory[name])
    for name, owned in plan.prune.items():
        for each in owned:
            result[name][each.ref.key] = replace(each, mark=_allowed(plan, each))
    for name, refs in facts.wanted.items():
        entries = result.setdefault(name, {})
        for ref in refs:
            recorded = entries.get(ref.key)
            entries[ref.key] = replace(recorded, ref=ref) if recorded else Owned(ref)
    return {name: entries for name, entries in result.items() if entries}


def _allowed(plan: Plan, owned: Owned) -> Mark:
    if _is_outdated(owned):
        return Mark.REPLACEABLE
    return Mark.CONFIRMED if plan.is_confirmed else owned.mark


def settle(facts: Facts, plan: Plan, needed: Inventory) -> dict[str, Basis]:
    """The bases after a plan: this round's, but the old one where nothing was evaluated."""
    settled: dict[str, Basis] = {}
    for name in needed:
        is_evaluated = name not in facts.unrendered and name not in plan.doubted
        present = facts.present.get(name) if is_evaluated else None
        if basis := present or facts.bases.get(name):
            settled[name] = basis
    return settled


def count(share: Mapping[str, Sequence[Owned] | Mapping[Key, Owned]]) -> int:
    """Count the objects on all clusters."""
    return sum(map(len, share.values()))


def without(share: Share, names: Mapping[str, object]) -> dict[str, list[Owned]]:
    """Take some clusters out of a share."""
    return {name: owned for name, owned in share.items() if name not in names}


def _select(share: Share, predicate: Callable[[Owned], bool]) -> dict[str, list[Owned]]:
    chosen = {name: [each for each in owned if predicate(each)] for name, owned in share.items()}
    return {name: owned for name, owned in chosen.items() if owned}


def _parts(facts: Facts, gone: Sequence[str], goes: Share) -> Sequence[object]:
    """Everything that a person confirms: this generation, what goes and what remains."""
    names = {
        name: sorted((*each.ref.key, each.uid) for each in owned) for name, owned in goes.items()
    }
    remains = {name: sorted(ref.key for ref in refs) for name, refs in facts.wanted.items()}
    return facts.uid, facts.generation, names, remains, gone


def new_nonce() -> str:
    """Make a nonce for a new hold."""
    return secrets.token_hex(8)


def hash_plan(before: Hold | None, nonce: str, *parts: object) -> tuple[str, str]:
    """Hash a plan for confirmation by a person, for this one time (rule D8).

    The same loss a year later has another hash, and so has a plan that changed meanwhile, also when
    it changes back: whoever confirmed it then may know better now.

    Args:
        before: the current hold.
        nonce: random, for a new hold.
        parts: everything that the plan depends on.

    Returns:
        The hash that confirms it, and its nonce.
    """
    if before and _hash(before.nonce, *parts) == before.plan_hash:
        return before.plan_hash, before.nonce
    return _hash(nonce, *parts), nonce


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
