"""Merge rules of lists and maps: which are keyed, which are sets, which are atomic.

Strategic merge and server-side apply both need it. Custom resources say it in their schema
(x-kubernetes-list-type and friends); for built-in types a table by field name is enough, because
Kubernetes uses each of these names for one thing wherever it can occur in a granular place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleetbus_emulator.apiserver.json_tree import as_object

ATOMIC = "atomic"
SET = "set"
MAP = "map"


@dataclass(slots=True, eq=False)
class MergeRule:
    """The merge behaviour of a value and of what is below it.

    Attributes:
        list_type: For a list: atomic, set or map.
        keys: Key fields of a map list, with the default that an item may leave out.
        atomic: For a map: replaced as a whole.
        fields: The rules of named children; `rest` is that of all others and of list items.
        declared: Whether `fields` names every field of the type; what else is in the map are its
            items, and an apply owns each as such.
    """

    list_type: str = ATOMIC
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    atomic: bool = False
    fields: dict[str, MergeRule] = field(default_factory=dict[str, "MergeRule"])
    rest: MergeRule | None = None
    declared: bool = False

    def child(self, name: str) -> MergeRule:
        """The rule of a field."""
        return self.fields.get(name) or self.rest or GRANULAR

    @property
    def items(self) -> MergeRule:
        """The rule of a list's items."""
        return self.rest or GRANULAR


NO_DEFAULT = object()
GRANULAR = MergeRule(declared=True)


def _keyed(items: MergeRule, *keys: str, protocol: bool = False) -> MergeRule:
    fields: dict[str, Any] = dict.fromkeys(keys, NO_DEFAULT)
    if protocol:
        fields["protocol"] = "TCP"
    return MergeRule(list_type=MAP, keys=fields, rest=items)


def _builtin() -> MergeRule:
    anything = MergeRule()
    anything.rest = anything
    container = MergeRule(rest=anything)
    atomic = MergeRule(atomic=True)
    anything.fields = {
        "containers": _keyed(container, "name"),
        "initContainers": _keyed(container, "name"),
        "ephemeralContainers": _keyed(container, "name"),
        "volumes": _keyed(anything, "name"),
        "imagePullSecrets": _keyed(anything, "name"),
        "secrets": _keyed(anything, "name"),
        "hostAliases": _keyed(anything, "ip"),
        "topologySpreadConstraints": _keyed(anything, "topologyKey", "whenUnsatisfiable"),
        "ports": _keyed(anything, "port", protocol=True),
        "conditions": _keyed(anything, "type"),
        "podIPs": _keyed(anything, "ip"),
        "ownerReferences": _keyed(atomic, "uid"),
        "finalizers": MergeRule(list_type=SET),
        "selector": atomic,
        "labelSelector": atomic,
        "podSelector": atomic,
        "namespaceSelector": atomic,
        "nodeSelector": atomic,
        "fieldRef": atomic,
        "configMapKeyRef": atomic,
        "secretKeyRef": atomic,
        "resourceFieldRef": atomic,
    }
    container.fields = {
        "env": _keyed(anything, "name"),
        "volumeMounts": _keyed(anything, "mountPath"),
        "volumeDevices": _keyed(anything, "devicePath"),
        "ports": _keyed(anything, "containerPort", protocol=True),
    }
    return anything


BUILTIN = _builtin()


def item_key(rule: MergeRule, item: Any) -> tuple[tuple[str, Any], ...] | None:
    """The key of an item of a map list; None if the item lacks one of the key fields."""
    fields = as_object(item)
    if fields is None:
        return None
    pairs: list[tuple[str, Any]] = []
    for name, default in rule.keys.items():
        value: Any = fields.get(name, default)
        if value is NO_DEFAULT or isinstance(value, (dict, list)):
            return None
        pairs.append((name, value))
    return tuple(pairs)


def keyed_items(rule: MergeRule, items: list[Any]) -> dict[tuple[tuple[str, Any], ...], Any] | None:
    """A map list by key; None if it cannot be one (an item without key, a duplicate key)."""
    by_key: dict[tuple[tuple[str, Any], ...], Any] = {}
    for item in items:
        key = item_key(rule, item)
        if key is None or key in by_key:
            return None
        by_key[key] = item
    return by_key
