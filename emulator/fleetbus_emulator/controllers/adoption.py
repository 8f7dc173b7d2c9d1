"""Adoption and release: which workload manages a pod, or a Deployment its ReplicaSets.

An object that a selector selects and nobody manages is adopted, for example the pods that survived
the deletion of their ReplicaSet; one that its manager's selector no longer selects is released,
for example a pod whose label was changed to look at it in peace. Each is looked at by itself when
its labels or owners change, so that no workload needs to look through all pods for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.controllers.owners import labels_of, owner_reference, selects
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import (
    controller_uid,
    is_deleting,
    owners_of,
    uid_of,
)
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Kinds, World

JsonObject = dict[str, Any]
Kind = tuple[str, str]
PODS: Kind = ("", "pods")
REPLICA_SETS: Kind = ("apps", "replicasets")
# What each controller manages, by the type of its own objects.
MANAGED: dict[Kind, tuple[str, Kind]] = {
    ("apps", "deployments"): ("deployment", REPLICA_SETS),
    REPLICA_SETS: ("replicaset", PODS),
    ("apps", "statefulsets"): ("statefulset", PODS),
    ("apps", "daemonsets"): ("daemonset", PODS),
    ("batch", "jobs"): ("job", PODS),
}


class Claims:
    """Gives children to the workloads that select them.

    Args:
        world: The cluster.
        controllers: The controllers for whose objects that is done.
    """

    name = "claim"
    watches: Kinds = frozenset({*MANAGED, PODS})
    rank = AT_ONCE

    def __init__(self, world: World, controllers: Collection[str]) -> None:
        self._world = world
        self._view = world.view
        self._managed = {
            kind: child for kind, (name, child) in MANAGED.items() if name in controllers
        }

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Children when labels or owners change; all unmanaged ones for a new workload."""
        kind = (ref.group, ref.resource)
        child = self._managed.get(kind)
        if child is not None and change.type == "ADDED":
            strays = self._view.unmanaged(*child, ref.namespace)
            yield from (stray for stray in strays if selects(change.new, self._view[stray]))
        if kind not in (PODS, REPLICA_SETS) or change.type == "DELETED":
            return
        if change.old is None or _standing(change.old) != _standing(change.new):
            yield ref

    def reconcile(self, ref: Ref) -> None:
        """Have the child managed by who selects it."""
        child = self._view[ref]
        if is_deleting(child):
            return
        if controller_uid(child):
            self._release(ref, child)
        else:
            self._adopt(ref, child)

    def _release(self, ref: Ref, child: JsonObject) -> None:
        manager = self._view.controller_of(child)
        if manager is None or self._managed.get((manager.group, manager.resource)) is None:
            return
        owner = self._view[manager]
        if not is_deleting(owner) and not selects(owner, child):
            self._set_owners(ref, [o for o in owners_of(child) if o.get("uid") != uid_of(owner)])

    def _adopt(self, ref: Ref, child: JsonObject) -> None:
        for kind, managed_type in self._managed.items():
            if managed_type != (ref.group, ref.resource):
                continue
            for candidate in self._view.of_type(*kind, ref.namespace):
                owner = self._view[candidate]
                if not is_deleting(owner) and selects(owner, child):
                    others = [o for o in owners_of(child) if o.get("uid") != uid_of(owner)]
                    self._set_owners(ref, [*others, owner_reference(owner)])
                    return

    def _set_owners(self, ref: Ref, owners: list[JsonObject]) -> None:
        guard = {"resourceVersion": self._view[ref]["metadata"]["resourceVersion"]}
        self._world.patch(ref, {"metadata": {"ownerReferences": owners, **guard}})


def _standing(obj: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    return labels_of(obj), owners_of(obj)
