"""Decides whether an apply would change an object, without knowledge of its type (rule D3).

Only the API server knows that `1000m` and `1` are one quantity but two labels, that it omits a
`false`, and what its webhooks make of a value. So an apply is spared in two cases only:
1. `is_applied`: the live object has exactly our fields with exactly our values, in our order;
2. `ServerAnswers`: the server has seen this very apply on this very object, and has left it, or
   made it, as it is now.
Anything else is put to the server: by the apply itself where it may be written, else by a dry run.
Which fields are ours is read from managedFields, so a field that another manager added never looks
like drift, and a field that is no longer applied is noticed although all values fit.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import orjson

from fleetbus.kube.keyed_items import ItemsByKey, read_key

Tree: TypeAlias = dict[str, Any]

_IDENTITY: Final = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})
_MAPS: Final = ("labels", "annotations")
_LISTS: Final = ("finalizers", "ownerReferences")
_MOST: Final = 100_000
"""The least recently used answers go first; one that is forgotten costs one request."""


def is_applied(desired: Mapping[str, Any], live: Mapping[str, Any], manager: str) -> bool:
    """Whether `live` shows, text by text, what applying `desired` as `manager` makes of it.

    False says nothing: the server may take both for the same.
    """
    owned = _applied_fields(live, manager, str(desired["apiVersion"]))
    if owned is None:
        return False
    configuration = {key: value for key, value in desired.items() if key not in _IDENTITY}
    metadata = cast("Tree", configuration["metadata"])
    configuration["metadata"] = {k: v for k, v in metadata.items() if k not in _UNOWNED_METADATA}
    return _same(owned, configuration, live)


def is_identical(first: Any, second: Any) -> bool:
    """Whether two JSON values are the same text: `true` is not `1`, and `1.0` is not `1`."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict | list):
        return _dump(first) == _dump(second)
    return bool(first == second)


def is_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a write, or a dry run of it, has changed nothing but who owns which field."""
    return _dump(_content(before)) == _dump(_content(after))


def digest(obj: Mapping[str, Any]) -> bytes:
    """Hash an object."""
    return hashlib.blake2b(_dump(obj), digest_size=16).digest()


class ServerAnswers:
    """Objects that their API servers have left, or made, as an apply wants them.

    An answer holds for one configuration, and for as long as all that it can depend on stays as it
    is: our fields, and the object without its status and without the labels and annotations of
    others. So it outlives each heartbeat in a status, and an idle fleet is asked nothing.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()

    def note(
        self, cluster: str, desired: Mapping[str, Any], answer: Mapping[str, Any], manager: str = ""
    ) -> None:
        """Remember that the server has nothing to change any more.

        Args:
            cluster: the name of the cluster.
            desired: the configuration without preconditions, or a merge patch.
            answer: the object as the server has answered.
            manager: the field manager that applies; "" where `desired` itself shows what is no
                longer applied: then objects without managedFields can be compared.
        """
        key = (cluster, str(answer["metadata"].get("uid")), manager)
        self._answers[key] = facts_of(desired, answer, manager)
        self._answers.move_to_end(key)
        if len(self._answers) > _MOST:
            self._answers.popitem(last=False)

    def has_any(self, cluster: str, live: Mapping[str, Any], manager: str = "") -> bool:
        """Whether the server has answered any apply on an object; arguments as for `note`."""
        return (cluster, str(live["metadata"].get("uid")), manager) in self._answers

    def covers(
        self, cluster: str, desired: Mapping[str, Any], live: Mapping[str, Any], manager: str = ""
    ) -> bool:
        """Whether the server is known to have nothing to change; arguments as for `note`."""
        key = (cluster, str(live["metadata"].get("uid")), manager)
        if key not in self._answers:
            return False
        self._answers.move_to_end(key)
        return self._answers[key] == facts_of(desired, live, manager)


def facts_of(desired: Mapping[str, Any], live: Mapping[str, Any], manager: str) -> bytes:
    """Hash everything that the result of an apply depends on, as far as the object shows it."""
    owned = _applied_fields(live, manager, str(desired["apiVersion"]))
    metadata = cast("Tree", live["metadata"])
    named: Tree = {key: metadata.get(key) for key in _LISTS}
    for name in _MAPS:
        managed_names = _members(desired["metadata"].get(name)).keys() | _owned_keys(owned, name)
        named[name] = {k: v for k, v in _members(metadata.get(name)).items() if k in managed_names}
    body = {key: value for key, value in live.items() if key not in ("status", "metadata")}
    return digest({"wanted": desired, "owned": owned, "metadata": named, "body": body})


def _content(tree: Mapping[str, Any]) -> Tree:
    dropped = ("managedFields", "resourceVersion", "generation")
    metadata = {k: v for k, v in tree["metadata"].items() if k not in dropped}
    return {**tree, "metadata": metadata, "status": None}


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # deeper than 254, or an integer beyond 64 bits
        return json.dumps(value, sort_keys=True).encode()


def _members(value: Any) -> Tree:
    return cast("Tree", value) if isinstance(value, dict) else {}


def _owned_keys(owned: Tree | None, name: str) -> set[str]:
    metadata = _members((owned or {}).get("f:metadata"))
    return {key.removeprefix("f:") for key in _members(metadata.get(f"f:{name}"))}


def _applied_fields(live: Mapping[str, Any], manager: str, api_version: str) -> Tree | None:
    """The fields of our entry; None without one, or if an apply would renew its version."""
    entries = _members(live.get("metadata")).get("managedFields")
    for entry in map(_members, cast("list[Any]", entries) if isinstance(entries, list) else ()):
        is_ours = entry.get("manager") == manager and entry.get("operation") == "Apply"
        if is_ours and not entry.get("subresource"):
            is_current = entry.get("apiVersion") == api_version
            return _members(entry.get("fieldsV1")) if is_current else None
    return None


def _same(owned: Tree, desired: Any, live: Any) -> bool:
    parts = {key: _members(tree) for key, tree in owned.items() if key != "."}
    if parts and all(key.startswith("f:") for key in parts):
        return _same_members(parts, desired, live)
    if parts and all(key.startswith("k:") for key in parts):
        return _same_items(parts, desired, live)
    if parts and all(key.startswith("v:") for key in parts):
        return _same_set(parts, desired, live)
    return is_identical(desired, live)


def _same_members(parts: Tree, desired: Any, live: Any) -> bool:
    if not isinstance(desired, dict) or not isinstance(live, dict):
        return False
    desired_members, live_members = cast("Tree", desired), cast("Tree", live)
    names = {key[2:] for key in parts}
    if names != desired_members.keys():
        return False
    return all(
        _same(parts[f"f:{key}"], desired_members[key], live_members.get(key)) for key in names
    )


def _same_items(parts: Tree, desired: Any, live: Any) -> bool:
    """Whether all items are there, in our order: the order of variables or rules may matter.

    The work grows with the items, not with their square: a list of thousands must stall nobody.
    """
    if not isinstance(desired, list) or not isinstance(live, list):
        return False
    desired_items, live_items = (
        ItemsByKey(cast("list[Any]", desired)),
        ItemsByKey(cast("list[Any]", live)),
    )
    if len(desired_items) != len(parts):
        return False
    places: dict[int, int] = {}
    for text, tree in parts.items():
        if not (key := read_key(text)):
            return False
        # Members of the key may come from defaults, as the protocol of a port does.
        required = {name for name in key if f"f:{name}" in tree}
        mine, there = desired_items.places(key, required), live_items.places(key, key.keys())
        if len(mine) != 1 or len(there) != 1:
            return False
        if not _same(tree, desired[mine[0]], live[there[0]]):
            return False
        places[mine[0]] = there[0]
    order = [places[number] for number in sorted(places)]
    return len(order) == len(desired_items) and order == sorted(order)


def _same_set(parts: Tree, desired: Any, live: Any) -> bool:
    if not isinstance(desired, list) or not isinstance(live, list):
        return False
    desired_values = list(map(_dump, cast("list[Any]", desired)))
    live_values = map(_dump, cast("list[Any]", live))
    try:
        values = {_dump(json.loads(text[2:])) for text in parts}
    except (ValueError, RecursionError):
        return False
    is_ours = len(desired_values) == len(values) and set(desired_values) == values
    return is_ours and [value for value in live_values if value in values] == desired_values
