"""metadata.managedFields of objects that are made whole instead of being written step by step.

What an Update owns is everything in the object, as where the server creates one; here what many
objects have in common is built once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.types.merge_rules import BUILTIN, MergeRule
from fleetbus_emulator.apiserver.write import field_sets
from fleetbus_emulator.apiserver.write.managed_fields import (
    METADATA_ONLY,
    STRUCTS,
    UPDATE,
    store_entries,
)

if TYPE_CHECKING:
    from collections.abc import Collection

JsonObject = dict[str, Any]
Tree = dict[str, Any]
EMPTY: Tree = {}
CONTAINERS = "f:containers"
OWNER_REFERENCES = "f:ownerReferences"
REMEMBERED = 100
UNWRITTEN = ("apiVersion", "kind", "status")


class ManagedFields:
    """Writes the managedFields of objects, and reuses what they have in common.

    The containers of a template are in the Deployment, in its ReplicaSets and in all pods: the
    same list, whose tree is built once.

    Args:
        kinds: The kinds that get managedFields, because others will not be seen; empty for all.
    """

    def __init__(self, kinds: Collection[str] = ()) -> None:
        self._kinds = kinds
        # The list is kept beside its tree so that its id is not reused meanwhile.
        self._trees: dict[int, tuple[Any, Tree]] = {}

    def keep(
        self,
        obj: JsonObject,
        manager: str,
        *,
        controller: str = "",
        rule: MergeRule = BUILTIN,
    ) -> None:
        """Write the managedFields of an object that one manager created and none changed since.

        Args:
            obj: The object, status included; it is changed.
            manager: Who wrote everything but the status.
            controller: The manager of the status; empty if it has none.
            rule: How its lists and maps are owned.
        """
        if self._kinds and obj["kind"] not in self._kinds:
            return
        meta, api_version = obj["metadata"], obj["apiVersion"]
        time = meta["creationTimestamp"]
        roots = [name for name in obj if name not in UNWRITTEN]
        fields = self.fields(obj, *roots, rule=rule)
        entries = [entry(manager, time, fields, api_version=api_version)]
        if controller:
            status = self.fields(obj, "status", rule=rule)
            entries.append(
                entry(controller, time, status, api_version=api_version, subresource="status")
            )
        store_entries(obj, entries)

    def fields(self, obj: JsonObject, *roots: str, rule: MergeRule = BUILTIN) -> Tree:
        """The tree of some top-level fields of an object; of the metadata what can be owned."""
        structs = STRUCTS if rule is BUILTIN else METADATA_ONLY
        parts = field_sets.owned_parts(obj, rule)
        trees: Tree = {}
        for element in sorted(f"f:{root}" for root in roots):
            if element in parts:
                value, inner = parts[element]
                tree = self._tree(value, inner, element, structs)
                if tree or element != "f:metadata":
                    trees[element] = tree
        return trees

    def _tree(self, value: Any, rule: MergeRule, element: str, structs: frozenset[str]) -> Tree:
        if element == CONTAINERS and (cached := self._trees.get(id(value))) is not None:
            return cached[1]
        parts = field_sets.children(value, rule)
        if not parts:
            return EMPTY
        tree = {n: self._tree(content, s, n, structs) for n, (content, s) in sorted(parts.items())}
        if element == CONTAINERS:
            if len(self._trees) >= REMEMBERED:
                self._trees.clear()
            self._trees[id(value)] = (value, tree)
        is_member = isinstance(value, dict) and element not in structs
        return {".": EMPTY, **tree} if is_member else tree


def entry(
    manager: str,
    time: str,
    fields: Tree,
    *,
    api_version: str = "v1",
    subresource: str = "",
) -> JsonObject:
    """An entry of managedFields that a plain write left."""
    head: JsonObject = {
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        "manager": manager,
        "operation": UPDATE,
    }
    if subresource:
        head["subresource"] = subresource
    return {**head, "time": time}


def without_owners(found: JsonObject) -> JsonObject:
    """An entry that does not own the references to owners."""
    metadata: Tree = found["fieldsV1"].get("f:metadata", EMPTY)
    if OWNER_REFERENCES not in metadata:
        return found
    fields = {name: tree for name, tree in metadata.items() if name != OWNER_REFERENCES}
    return {**found, "fieldsV1": {**found["fieldsV1"], "f:metadata": fields}}
