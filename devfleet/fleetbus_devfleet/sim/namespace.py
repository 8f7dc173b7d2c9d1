"""Namespaces: what each of them has from the beginning, and how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import listing, mapping
from fleetbus_devfleet.sim.conditions import Condition, truth, with_conditions
from fleetbus_devfleet.sim.view import Ref, is_deleting
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
ACCOUNT = "default"
BURST = 50  # objects deleted in one turn
ROOT_CERTIFICATE = "kube-root-ca.crt"
CERTIFICATE = """-----BEGIN CERTIFICATE-----
c2ltdWxhdGVkIGJ5IGZsZWV0YnVzIGRldmZsZWV0
-----END CERTIFICATE-----
"""
WHY = "kubernetes.io/description"
DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


class NamespaceController:
    """Furnishes namespaces and clears them out."""

    name = "namespace"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Namespaces by themselves, by their furniture, and by what leaves them."""
        if (ref.group, ref.resource) == ("", "namespaces"):
            return [ref]
        namespace = Ref("", "namespaces", "", ref.namespace)
        obj = self._view.get(namespace)
        if obj is None:
            return []
        furniture = ref.resource in ("serviceaccounts", "configmaps")
        lost = furniture and change.type == "DELETED"
        return [namespace] if lost or is_deleting(obj) else []

    def reconcile(self, ref: Ref) -> None:
        """Furnish the namespace, or clear it out."""
        if not is_deleting(self._view[ref]):
            self._furnish(ref.name)
        elif self._world.is_due(Item(self.name, ref), "clear", self._world.timing.collect):
            self._clear(ref)

    def _furnish(self, namespace: str) -> None:
        meta = {"name": ACCOUNT, "namespace": namespace}
        if Ref("", "serviceaccounts", namespace, ACCOUNT) not in self._view:
            self._world.create("v1/serviceaccounts", {"metadata": meta})
        meta = {"name": ROOT_CERTIFICATE, "namespace": namespace}
        if Ref("", "configmaps", namespace, ROOT_CERTIFICATE) not in self._view:
            described = {**meta, "annotations": {WHY: DESCRIPTION}}
            config = {"metadata": described, "data": {"ca.crt": CERTIFICATE}}
            self._world.create("v1/configmaps", config)

    def _clear(self, ref: Ref) -> None:
        contents = self._view.in_namespace.get(ref.name)
        whole = [inner for inner in contents if not is_deleting(self._view[inner])]
        for inner in whole[:BURST]:
            if inner in self._view:  # the deletion of a definition may take others along
                self._world.delete(inner, policy="Background")
        if len(whole) > BURST:
            return  # the events of these deletions bring the next turn
        if self._view.in_namespace.count(ref.name):
            self._tell(ref)
        else:
            self._finish(ref)

    def _tell(self, ref: Ref) -> None:
        inner = [(r, self._view[r]) for r in self._view.in_namespace.get(ref.name)]
        remaining = Counter(f"{r.resource}.{r.group}" for r, _ in inner)
        finalizers = Counter(f for _, obj in inner for f in listing(obj, "metadata", "finalizers"))
        wanted = deletion_conditions(remaining, finalizers)
        namespace = self._view[ref]
        conditions = with_conditions(namespace, wanted, self._world.now())
        status = {**mapping(namespace, "status"), "conditions": conditions}
        self._world.write_status(ref, status)

    def _finish(self, ref: Ref) -> None:
        namespace = self._view[ref]
        kept = [f for f in listing(namespace, "spec", "finalizers") if f != "kubernetes"]
        if kept == listing(namespace, "spec", "finalizers"):
            return  # another finalizer holds it
        emptied = {**namespace, "spec": {**mapping(namespace, "spec"), "finalizers": kept}}
        self._world.finalize(ref, emptied)


def deletion_conditions(remaining: Counter[str], finalizers: Counter[str]) -> list[Condition]:
    """What a namespace says while it waits for its contents to go.

    Args:
        remaining: How many objects are left, by `<resource>.<group>`.
        finalizers: How many of them each finalizer holds.
    """
    left = ", ".join(f"{kind} has {n} resource instances" for kind, n in sorted(remaining.items()))
    held = ", ".join(f"{name} in {n} resource instances" for name, n in sorted(finalizers.items()))
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
            truth(held),
            "SomeFinalizersRemain" if held else "ContentHasNoFinalizers",
            f"Some content in the namespace has finalizers remaining: {held}"
            if held
            else "All content-preserving finalizers finished",
        ),
    ]
