"""The garbage collector: objects whose owners are gone are deleted.

An object is collected when every owner that it names is gone. Deleting an owner in the foreground
keeps it, by a finalizer, until its blocking dependents are gone; orphaning takes it out of their
ownerReferences first.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import DEFINITIONS, is_deleting, owners_of, uid_of
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Item, Kinds, World

JsonObject = dict[str, Any]
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
Bonds = tuple[list[JsonObject], str, bool] | None
UNBOUND: Bonds = ([], "", False)
BUILTIN_KINDS = frozenset((rtype.group, rtype.kind) for rtype in BUILTIN_TYPES)


class OwnerState(Enum):
    """The state of an owner that an owner reference names."""

    SOLID = "solid"
    WAITING = "waiting"  # the owner is being deleted and waits for its dependents
    DANGLING = "dangling"


class GarbageCollector:
    """Deletes dependents, and releases owners when their dependents are gone."""

    name = "garbage"
    watches: Kinds = frozenset()
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """The object if it has owners or a finalizer of ours; its dependents; its owners."""
        gone = change.type == "DELETED"
        if not gone and _ownership(change.new) not in (UNBOUND, _ownership(change.old)):
            yield ref
        if gone or (is_deleting(change.new) and _held_by(change.new)):
            yield from self._view.owned.get(uid_of(change.new))
        if gone or (change.old is not None and owners_of(change.old) != owners_of(change.new)):
            for owner in owners_of(change.old or change.new):
                owner_ref = self._view.find_uid(str(owner.get("uid")))
                if owner_ref is not None and is_deleting(self._view[owner_ref]):
                    yield owner_ref

    def reconcile(self, ref: Ref) -> None:
        """Collect the object, or let it go."""
        obj = self._view[ref]
        finalizer = is_deleting(obj) and _held_by(obj)
        unowned = not is_deleting(obj) and self._is_to_collect(ref)
        if not finalizer and not unowned:
            return
        if not self._world.is_due(Item(self.name, ref), "collect", self._world.timing.collect):
            return
        if finalizer == ORPHAN:
            self._orphan_dependents(ref)
        elif finalizer == FOREGROUND:
            self._finish_foreground(ref)
        else:
            self._collect(ref)

    # owners that wait ---------------------------------------------------------------------------

    def _orphan_dependents(self, ref: Ref) -> None:
        uid = uid_of(self._view[ref])
        for dependent in self._view.owned.get(uid):
            self._drop_owners(dependent, {uid})
        self._world.remove_finalizer(ref, ORPHAN)

    def _finish_foreground(self, ref: Ref) -> None:
        uid = uid_of(self._view[ref])
        if not any(self._blocks(dependent, uid) for dependent in self._view.owned.each(uid)):
            self._world.remove_finalizer(ref, FOREGROUND)

    def _blocks(self, dependent: Ref, uid: str) -> bool:
        owners = owners_of(self._view[dependent])
        return any(o.get("uid") == uid and o.get("blockOwnerDeletion") for o in owners)

    # dependents ---------------------------------------------------------------------------------

    def _owner_states(self, ref: Ref) -> dict[str, OwnerState]:
        return {
            str(owner.get("uid")): self._owner_state(ref, owner)
            for owner in owners_of(self._view[ref])
        }

    def _owner_state(self, ref: Ref, owner: JsonObject) -> OwnerState:
        group = str(owner.get("apiVersion") or "").rpartition("/")[0]
        kind = str(owner.get("kind") or "")
        owner_ref = self._view.find_uid(str(owner.get("uid")))
        if owner_ref is None:
            # Of a kind that is not served nothing can be known.
            return OwnerState.DANGLING if self._is_served(group, kind) else OwnerState.SOLID
        if owner_ref.namespace and owner_ref.namespace != ref.namespace:
            return OwnerState.DANGLING if ref.namespace else OwnerState.SOLID
        obj = self._view[owner_ref]
        if obj["kind"] != kind or owner_ref.group != group or owner_ref.name != owner.get("name"):
            return OwnerState.DANGLING if self._is_served(group, kind) else OwnerState.SOLID
        waits = is_deleting(obj) and _held_by(obj) == FOREGROUND
        return OwnerState.WAITING if waits else OwnerState.SOLID

    def _is_served(self, group: str, kind: str) -> bool:
        if (group, kind) in BUILTIN_KINDS:
            return True
        specs = (self._view[ref]["spec"] for ref in self._view.of_type(*DEFINITIONS))
        return any(spec["group"] == group and spec["names"]["kind"] == kind for spec in specs)

    def _is_to_collect(self, ref: Ref) -> bool:
        states = self._owner_states(ref).values()
        return any(state is not OwnerState.SOLID for state in states)

    def _collect(self, ref: Ref) -> None:
        states = self._owner_states(ref)
        worthless = {uid for uid, s in states.items() if s is not OwnerState.SOLID}
        if len(worthless) < len(states):
            self._drop_owners(ref, worthless)
            return
        waited_for = OwnerState.WAITING in states.values()
        has_dependents = bool(self._view.owned.count(uid_of(self._view[ref])))
        self._world.delete(ref, policy=self._policy(ref, in_turn=waited_for and has_dependents))

    def _policy(self, ref: Ref, *, in_turn: bool) -> str:
        """Foreground down the tree; else what the object's own finalizers already say."""
        if in_turn:
            return "Foreground"
        finalizer = _held_by(self._view[ref])
        return {FOREGROUND: "Foreground", ORPHAN: "Orphan"}.get(finalizer, "Background")

    def _drop_owners(self, ref: Ref, uids: set[str]) -> None:
        obj = self._view[ref]
        remaining = [owner for owner in owners_of(obj) if owner.get("uid") not in uids]
        guard = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        self._world.patch(ref, {"metadata": {"ownerReferences": remaining, **guard}})


def _held_by(obj: JsonObject) -> str:
    """The finalizer of ours that the object has; empty if it has none."""
    finalizers = listing(obj, "metadata", "finalizers")
    return next((name for name in (ORPHAN, FOREGROUND) if name in finalizers), "")


def _ownership(obj: JsonObject | None) -> Bonds:
    """The part of an object that decides whether the collector has to act on it."""
    if obj is None:
        return None
    finalizer = _held_by(obj)
    return owners_of(obj), finalizer, bool(finalizer) and is_deleting(obj)
