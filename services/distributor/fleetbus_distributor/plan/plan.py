"""What one round does on each cluster: apply, prune, hold (rules D1, D7, D8).

Pure: the same facts give the same plan. A deletion needs an entry of the intent that the spec,
read live and rendered without any error, no longer names, on a cluster that is in the fleet.
Everything less than that is kept.

A deletion that follows from an edit of this very MultiClusterResource was asked for. Every other
one, because a cluster got other labels or because we render otherwise than before, is automatic:
it is limited here, and by the budget of the fleet. Deleting an object to create it anew (policy
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
from fleetbus_distributor.render.spec import Fuse
from fleetbus_distributor.render.template import ObjectRef

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
    nonce: str = ""
    """Hashed into the plan hash, and new with every question."""


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
    unrendered: frozenset[str] = frozenset()
    """Placed clusters that could not be rendered: while there are any, nothing goes (rule D1)."""
    uid: str = ""
    """Of the MultiClusterResource."""
    generation: int
    fuse: Fuse
    confirmed: str = ""
    held: Hold | None = None
    """As the last round left it."""
    nonce: str = ""
    """Random, for a question that was not asked before."""
    recreates: bool = False
    """Policy recreate."""
    keeps_objects: bool = False
    """What is no longer wanted is not deleted (policy Orphan), so there is nothing to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do; `prune` never names what `held` or `doubted` do."""

    judged: Inventory = field(default_factory=dict[str, dict[Key, Owned]])
    """What is on record, with the marks that hold from this round on."""
    prune: Share = field(default_factory=dict[str, list[Owned]])
    """What goes, and what has to be deleted and created anew."""
    asked: Share = field(default_factory=dict[str, list[Owned]])
    """Of `prune`, what an edit or a person asked for, or what only is let go of."""
    automatic: Share = field(default_factory=dict[str, list[Owned]])
    """Of `prune`, what nobody asked for and nobody confirmed: it needs a share of the budget."""
    question: Share = field(default_factory=dict[str, list[Owned]])
    """What a person is asked about if it is held; `plan_hash` names it."""
    held: Share = field(default_factory=dict[str, list[Owned]])
    doubted: Share = field(default_factory=dict[str, list[Owned]])
    """What the labels of its cluster, read live, do not confirm."""
    released: Share = field(default_factory=dict[str, list[Owned]])
    """Left behind on clusters that were unjoined."""
    gone: Sequence[str] = ()
    """Clusters that vanished without an unjoin: their entries are kept (rule D7)."""
    hold: Hold | None = None
    is_confirmed: bool = False
    """A person has just answered: that goes on record, and the question is over."""
    plan_hash: str = ""
    nonce: str = ""


def make_plan(facts: Facts) -> Plan:
    """Compare what is wanted with what is on record."""
    absent = [name for name in facts.inventory if name not in facts.present]
    released = {name: list(facts.inventory[name].values()) for name in absent if name in facts.left}
    gone = sorted(name for name in absent if name not in facts.left)
    judged = {name: _judge_all(facts, name) for name in facts.inventory if name not in released}
    plan = Plan(judged=judged, released=released, gone=gone)
    if facts.unrendered:
        return plan
    doomed = {name: list(_doomed(facts, name, entries)) for name, entries in judged.items()}
    prune = _select(doomed, lambda _one: True)
    automatic = _select(prune, lambda one: _is_automatic(facts, one))
    asked = _select(prune, lambda one: not _is_automatic(facts, one))
    question = automatic
    if not facts.wanted and not facts.keeps_objects:
        question = _select(prune, lambda one: one.mark is not Mark.CONFIRMED)
    plan_hash, nonce = name_question(facts.held, facts.nonce, *_parts(facts, gone, question))
    plan = replace(
        plan,
        prune=prune,
        asked=asked,
        automatic=automatic,
        question=question,
        plan_hash=plan_hash,
        nonce=nonce,
    )
    if question and facts.confirmed == plan_hash:
        return replace(plan, asked=prune, automatic={}, is_confirmed=True)
    return _hold(facts, plan)


def _judge_all(facts: Facts, cluster: str) -> dict[Key, Owned]:
    entries = facts.inventory[cluster]
    if cluster not in facts.present or cluster in facts.unrendered:
        return entries
    wanted = {ref.key for ref in facts.wanted.get(cluster, ())}
    return {
        key: replace(
            one,
            mark=_judge_wanted(facts, cluster, one.mark)
            if key in wanted
            else _judge_surplus(facts, cluster, one.mark),
        )
        for key, one in entries.items()
    }


def _judge_surplus(facts: Facts, cluster: str, mark: Mark) -> Mark:
    """Whether an object is no longer wanted because the spec was edited.

    It was wanted by another generation of the spec, and the labels of its cluster are what they
    were then, or do not matter. Once judged it stays so, whatever the labels become meanwhile.
    """
    if mark in (Mark.DROPPED, Mark.CONFIRMED):
        return mark
    before, now = facts.bases.get(cluster), facts.present[cluster]
    if before is None or before.generation == now.generation:
        return Mark.UNASKED
    if cluster in facts.unselectable:
        return Mark.DROPPED
    has_same_labels = before.labels == now.labels
    return Mark.DROPPED if has_same_labels and mark is not Mark.UNASKED else Mark.UNASKED


def _judge_wanted(facts: Facts, cluster: str, mark: Mark) -> Mark:
    """Whether an object may be replaced if it cannot be changed: only what an edit alone changed.

    A change that was not applied yet counts on, so that neither an edit after a relabelling nor a
    relabelling after an edit makes both of them asked for.
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


def _doomed(facts: Facts, cluster: str, entries: Mapping[Key, Owned]) -> Iterator[Owned]:
    if cluster not in facts.present:
        return
    wanted = {ref.key for ref in facts.wanted.get(cluster, ())}
    yield from (one for key, one in entries.items() if key not in wanted or _is_outdated(one))


def _is_outdated(owned: Owned) -> bool:
    return owned.mark is Mark.OUTDATED


def _is_automatic(facts: Facts, owned: Owned) -> bool:
    if facts.keeps_objects and not _is_outdated(owned):
        return False
    return owned.mark not in (Mark.DROPPED, Mark.CONFIRMED)


def _hold(facts: Facts, plan: Plan) -> Plan:
    """Rule D8: each limit alone holds; no cluster at all holds even what was asked for."""
    if not facts.wanted and not facts.keeps_objects and plan.question:
        confirmed = _select(plan.prune, lambda one: one.mark is Mark.CONFIRMED)
        return hold_automatic(facts, replace(plan, asked=confirmed), HoldReason.EMPTY_SELECTION)
    if not plan.automatic:
        return plan
    if facts.held and facts.held.reason is not HoldReason.UNREADABLE:
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
    return replace(
        plan,
        prune=plan.asked,
        automatic={},
        held=plan.question,
        doubted=without(plan.doubted, plan.question),
        hold=_explain(facts, plan, reason),
    )


def _explain(facts: Facts, plan: Plan, reason: HoldReason) -> Hold:
    """Say what is held, why, and what releases it."""
    share = plan.question
    is_all = reason is HoldReason.EMPTY_SELECTION
    asked = "" if is_all else ", and no edit of this MultiClusterResource asks for it"
    anew = count(_select(share, _is_outdated))
    created = f" ({anew} to be created anew, because a changed field is immutable)" if anew else ""
    message = (
        f"{count(share)} of {count(facts.inventory)} objects on {len(share)} cluster(s) would be "
        f"deleted{created}{asked}: {_why(reason, facts.fuse)}; nothing of it is deleted until the "
        f"annotation {CONFIRM_PRUNE_ANNOTATION} is {plan.plan_hash!r}"
    )
    return Hold(reason, plan.plan_hash, message, plan.nonce)


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


def record(facts: Facts, plan: Plan) -> Inventory:
    """What must be on record before the first write: all that was or is wanted, as it was judged.

    What the limits or a person allowed is marked, so that this very object goes, and no other,
    however many rounds it takes.
    """
    result = {name: dict(entries) for name, entries in plan.judged.items()}
    for name in plan.doubted:
        result[name] = dict(facts.inventory[name])
    for name, owned in plan.prune.items():
        for one in owned:
            result[name][one.ref.key] = replace(one, mark=_allowed(plan, one))
    for name, refs in facts.wanted.items():
        entries = result.setdefault(name, {})
        for ref in refs:
            known = entries.get(ref.key)
            entries[ref.key] = replace(known, ref=ref) if known else Owned(ref)
    return {name: entries for name, entries in result.items() if entries}


def _allowed(plan: Plan, owned: Owned) -> Mark:
    if _is_outdated(owned):
        return Mark.REPLACEABLE
    return Mark.CONFIRMED if plan.is_confirmed else owned.mark


def settle(facts: Facts, plan: Plan, needed: Inventory) -> dict[str, Basis]:
    """The bases after a plan: this round's, but the old one where nothing could be judged."""
    settled: dict[str, Basis] = {}
    for name in needed:
        is_judged = name not in facts.unrendered and name not in plan.doubted
        present = facts.present.get(name) if is_judged else None
        if found := present or facts.bases.get(name):
            settled[name] = found
    return settled


def count(share: Mapping[str, Sequence[Owned] | Mapping[Key, Owned]]) -> int:
    """Objects on all clusters together."""
    return sum(map(len, share.values()))


def without(share: Share, names: Mapping[str, object]) -> dict[str, list[Owned]]:
    """A share without some clusters."""
    return {name: owned for name, owned in share.items() if name not in names}


def _select(share: Share, predicate: Callable[[Owned], bool]) -> dict[str, list[Owned]]:
    chosen = {name: [one for one in owned if predicate(one)] for name, owned in share.items()}
    return {name: owned for name, owned in chosen.items() if owned}


def _parts(facts: Facts, gone: Sequence[str], goes: Share) -> Sequence[object]:
    """Everything that a person confirms: this generation, what goes and what shall remain."""
    names = {name: sorted((*one.ref.key, one.uid) for one in owned) for name, owned in goes.items()}
    remains = {name: sorted(ref.key for ref in refs) for name, refs in facts.wanted.items()}
    return facts.uid, facts.generation, names, remains, gone


def new_nonce() -> str:
    """Make a nonce for a question that was not asked before."""
    return secrets.token_hex(8)


def name_question(before: Hold | None, nonce: str, *parts: object) -> tuple[str, str]:
    """Name what a person is asked, for this one time (rule D8).

    The same loss a year later is another question, and so is one that has changed meanwhile, also
    when it changes back: who confirmed it then may know better now.

    Args:
        before: the question that stands.
        nonce: random, for a new question.
        parts: everything that the question depends on.

    Returns:
        The hash that confirms it, and its nonce.
    """
    if before and _hash(before.nonce, *parts) == before.plan_hash:
        return before.plan_hash, before.nonce
    return _hash(nonce, *parts), nonce


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
