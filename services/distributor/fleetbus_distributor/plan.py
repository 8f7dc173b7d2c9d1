"""What one round does on each cluster: apply, prune, hold (rules D1, D7, D8).

Pure: the same facts give the same plan. A deletion needs an entry of the intent that the spec,
read live and rendered without any error, no longer names, on a cluster that is in the fleet.
Everything less than that is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.intent import Inventory, Key, Owned
from fleetbus_distributor.model import Fuse
from fleetbus_distributor.render import ObjectRef


class HoldReason(StrEnum):
    """Why deletions wait for a person."""

    FUSE = "DeletionFuse"
    EMPTY_SELECTION = "EmptySelection"
    LABELS = "LabelsNotConfirmed"
    """Not for a person: it ends when the fleet and the hub agree about the cluster's labels."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the plan depends on."""

    wanted: Mapping[str, Sequence[ObjectRef]]
    """Per placed cluster of the fleet: what shall be there."""
    inventory: Inventory
    fleet: frozenset[str]
    left: frozenset[str]
    """Clusters that left by an unjoin, which wrote a record."""
    complete: bool
    """Every placed cluster was rendered without an error (rule D1)."""
    by_selector: bool
    generation: int
    fuse: Fuse
    confirmed: str = ""
    keeps_objects: bool = False
    """Nothing is deleted (policy Orphan), so there is nothing to hold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; `prune` and `held` never name the same object."""

    prune: Mapping[str, list[Owned]]
    held: Mapping[str, list[Owned]]
    released: Mapping[str, list[Owned]]
    """Left behind on clusters that were unjoined."""
    gone: list[str]
    """Clusters that vanished without an unjoin: their entries are kept (rule D7)."""
    hold: HoldReason | None = None
    plan_hash: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Shrink:
    prunable: dict[str, list[Owned]]

    @property
    def count(self) -> int:
        return sum(len(owned) for owned in self.prunable.values())


def make_plan(facts: Facts) -> Plan:
    """Compare what is wanted with what is on record."""
    absent = [name for name in facts.inventory if name not in facts.fleet]
    released = {name: list(facts.inventory[name].values()) for name in absent if name in facts.left}
    gone = sorted(name for name in absent if name not in facts.left)
    if not facts.complete:
        return Plan(prune={}, held={}, released=released, gone=gone)
    shrink = _shrink(facts)
    plan_hash = _hash(facts, gone)
    hold = _hold(facts, shrink)
    if hold is None or facts.confirmed == plan_hash:
        return Plan(prune=shrink.prunable, held={}, released=released, gone=gone)
    return Plan(
        prune={},
        held=shrink.prunable,
        released=released,
        gone=gone,
        hold=hold,
        plan_hash=plan_hash,
        message=_explain(facts, shrink, hold, plan_hash),
    )


def _shrink(facts: Facts) -> _Shrink:
    prunable: dict[str, list[Owned]] = {}
    for name, entries in facts.inventory.items():
        if name not in facts.fleet:
            continue
        wanted: set[Key] = {ref.key for ref in facts.wanted.get(name, ())}
        surplus = [owned for key, owned in entries.items() if key not in wanted]
        if surplus:
            prunable[name] = surplus
    return _Shrink(prunable)


def _hold(facts: Facts, shrink: _Shrink) -> HoldReason | None:
    """Rule D8: both limits passed; or a selector that suddenly selects nothing at all.

    One cluster that was relabelled on purpose is the smallest case of the second, and let
    through; its live labels must confirm it (decision 8).
    """
    if facts.keeps_objects or not shrink.count:
        return None
    total = sum(len(entries) for entries in facts.inventory.values())
    if shrink.count > facts.fuse.objects and shrink.count * 100 > facts.fuse.percent * total:
        return HoldReason.FUSE
    if facts.by_selector and not facts.wanted and len(shrink.prunable) > 1:
        return HoldReason.EMPTY_SELECTION
    return None


def _explain(facts: Facts, shrink: _Shrink, hold: HoldReason, plan_hash: str) -> str:
    total = sum(len(entries) for entries in facts.inventory.values())
    why = {
        HoldReason.FUSE: f"more than {facts.fuse.objects} objects and {facts.fuse.percent} %",
        HoldReason.EMPTY_SELECTION: "the selector matches no cluster any more",
    }[hold]
    return (
        f"{shrink.count} of {total} objects on {len(shrink.prunable)} cluster(s) would be deleted "
        f"({why}); nothing is deleted until the annotation {CONFIRM_PRUNE_ANNOTATION} "
        f"is {plan_hash!r}"
    )


def _hash(facts: Facts, gone: Sequence[str]) -> str:
    """Name what a person confirms: this generation, and what shall remain on which cluster.

    What remains, and not what goes: a round that was interrupted half-way is still the round that
    was confirmed, while any other wish gets another name.
    """
    remains = {name: sorted(ref.key for ref in refs) for name, refs in facts.wanted.items()}
    text = json.dumps([facts.generation, remains, sorted(gone)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
