"""Deletion of namespaces. Pods are deleted first, so that nothing they need goes before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import Condition, truth, with_conditions
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World

JsonObject = dict[str, Any]
PODS = ("", "pods")
BURST = 50  # objects deleted in one turn


class NamespaceController:
    """Clears namespaces out."""

    name = "namespace"
    watches: Kinds = frozenset()
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Namespaces that are being deleted, by themselves and by what is in them."""
        if (ref.group, ref.resource) == ("", "namespaces"):
            return [ref] if is_deleting(change.new) else []
        namespace = Ref("", "namespaces", "", ref.namespace)
        obj = self._view.get(namespace) if ref.namespace else None
        return [namespace] if obj is not None and is_deleting(obj) else []

    def reconcile(self, ref: Ref) -> None:
        """Delete the contents of the namespace, report what remains, and finalize it when empty."""
        if not is_deleting(self._view[ref]):
            return
        if not self._world.is_due(Item(self.name, ref), "clear", self._world.timing.collect):
            return
        if self._delete_some(ref.name):
            return  # the events of these deletions bring the next turn
        self._tell(ref)
        if not self._view.in_namespace.count(ref.name):
            self._finish(ref)

    def _delete_some(self, namespace: str) -> bool:
        """Begin to delete what is to go next; whether more is left of it than one turn takes."""
        pods = self._view.count_of_type(*PODS, namespace)
        refs = self._view.whole_of_type(*PODS, namespace)
        todo = list(islice(refs if pods else self._view.whole.each(namespace), BURST + 1))
        for ref in todo[:BURST]:
            if ref in self._view:  # the deletion of a definition may take others along
                self._world.delete(ref, policy="Background")
        return len(todo) > BURST or (bool(todo) and bool(pods))

    def _tell(self, ref: Ref) -> None:
        inner = [(r, self._view[r]) for r in self._view.in_namespace.get(ref.name)]
        remaining = Counter(f"{r.resource}.{r.group}" for r, _ in inner)
        finalizers = Counter(f for _, obj in inner for f in listing(obj, "metadata", "finalizers"))
        new_conditions = deletion_conditions(remaining, finalizers)
        namespace = self._view[ref]
        conditions = with_conditions(namespace, new_conditions, self._world.now())
        status = {**mapping(namespace, "status"), "conditions": conditions}
        self._world.write_status(ref, status)

    def _finish(self, ref: Ref) -> None:
        namespace = self._view[ref]
        remaining = [f for f in listing(namespace, "spec", "finalizers") if f != "kubernetes"]
        if remaining == listing(namespace, "spec", "finalizers"):
            return  # another finalizer holds it
        emptied = {**namespace, "spec": {**mapping(namespace, "spec"), "finalizers": remaining}}
        self._world.finalize(ref, emptied)


def deletion_conditions(remaining: Counter[str], finalizers: Counter[str]) -> list[Condition]:
    """The conditions of a namespace whose contents are being deleted.

    Args:
        remaining: How many objects are left, by `<resource>.<group>`.
        finalizers: How many of them each finalizer holds.
    """
    left = ", ".join(f"{kind} has {n} resource instances" for kind, n in sorted(remaining.items()))
    blocking = ", ".join(
        f"{name} in {n} resource instances" for name, n in sorted(finalizers.items())
    )
    discovered = "All resources successfully discovered"
    parsed = "All legacy kube types successfully parsed"
    deleted = "All content successfully deleted, may be waiting on finalization"
    return [
        Condition("NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", discovered),
        Condition(
            "NamespaceDeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions", parsed
        ),
        Condition("NamespaceDeletionContentFailure", "False", "ContentDeleted", deleted),
        Condition(
            "NamespaceContentRemaining",
            truth(left),
            "SomeResourcesRemain" if left else "ContentRemoved",
            f"Some resources are remaining: {left}" if left else "All content successfully removed",
        ),
        Condition(
            "NamespaceFinalizersRemaining",
            truth(blocking),
            "SomeFinalizersRemain" if blocking else "ContentHasNoFinalizers",
            f"Some content in the namespace has finalizers remaining: {blocking}"
            if blocking
            else "All content-preserving finalizers finished",
        ),
    ]
