"""Rule D2: what we are about to own is in the status before the first apply.

A crash between an apply and its record then leaves nothing behind that the next round does not
know. The record is the union of what is wanted and what is not yet known to be gone; the UIDs
are filled in once an apply has confirmed them. Objects are listed once,
a cluster names them by index, and not at all when it has all of them; what grows as objects x
clusters are the UIDs, so there must be room for all of them before the first apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.render import ObjectRef

MAX_BYTES = 1024 * 1024
"""etcd takes 1.5 MiB for the whole object; spec and conditions need their part."""

_ANY_UID = "0" * 36

Key: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Owned:
    """An object that is, or is about to be, ours on one cluster."""

    ref: ObjectRef
    uid: str = ""
    """Empty until an apply has confirmed it."""

    @property
    def kind(self) -> str:
        """The Kubernetes kind."""
        return self.ref.kind


Inventory: TypeAlias = dict[str, dict[Key, Owned]]
"""Cluster → key → object."""


def read(status: Mapping[str, Any]) -> Inventory:
    """Read the intent of a MultiClusterResource's status.

    Raises:
        IntentError: it is not what `write` wrote; then nothing may be concluded from it.
    """
    raw: Any = status.get("intent")
    if raw is None:
        return {}
    try:
        objects = [_to_ref(item) for item in raw.get("objects", [])]
        return {
            str(entry["name"]): _read_cluster(entry, objects) for entry in raw.get("clusters", [])
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise IntentError("status.intent is not readable; nothing is applied or pruned") from error


def _to_ref(item: Any) -> ObjectRef:
    fields = cast("dict[str, Any]", item)
    return ObjectRef(
        str(fields["apiVersion"]),
        str(fields["kind"]),
        str(fields["namespace"]),
        str(fields["name"]),
    )


def _read_cluster(entry: Any, objects: list[ObjectRef]) -> dict[Key, Owned]:
    fields = cast("dict[str, Any]", entry)
    indexes = cast("list[int]", fields.get("objects", list(range(len(objects)))))
    uids = cast("list[str]", fields.get("uids", [""] * len(indexes)))
    pairs = zip(indexes, uids, strict=True)
    owned = [Owned(objects[index], str(uid)) for index, uid in pairs]
    return {one.ref.key: one for one in owned}


def write(inventory: Inventory) -> dict[str, Any]:
    """The form that is stored; equal inventories give equal trees.

    Raises:
        IntentError: it would not fit into the status.
    """
    refs = sorted(
        {one.ref for entries in inventory.values() for one in entries.values()},
        key=lambda ref: (ref.key, ref.api_version),
    )
    index = {ref: number for number, ref in enumerate(refs)}
    clusters = [
        _write_cluster(name, entries, index)
        for name, entries in sorted(inventory.items())
        if entries
    ]
    objects = [
        {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
        }
        for ref in refs
    ]
    stored = {"objects": objects, "clusters": clusters}
    if len(json.dumps(stored)) > MAX_BYTES:
        raise IntentError(
            f"{len(objects)} objects on {len(clusters)} clusters do not fit into the status; "
            "split the MultiClusterResource"
        )
    return stored


def check_room(inventory: Inventory) -> None:
    """Refuse what could be stored now, but no longer once every apply has confirmed its UID.

    Raises:
        IntentError: it would not fit into the status.
    """
    write(
        {
            name: {key: replace(one, uid=one.uid or _ANY_UID) for key, one in entries.items()}
            for name, entries in inventory.items()
        }
    )


def _write_cluster(
    name: str, entries: Mapping[Key, Owned], index: Mapping[ObjectRef, int]
) -> dict[str, Any]:
    numbered = sorted((index[one.ref], one.uid) for one in entries.values())
    numbers = [number for number, _ in numbered]
    stored: dict[str, Any] = {"name": name}
    if numbers != list(range(len(index))):
        stored["objects"] = numbers
    if any(uid for _, uid in numbered):
        stored["uids"] = [uid for _, uid in numbered]
    return stored


def extend(inventory: Inventory, wanted: Mapping[str, Iterable[ObjectRef]]) -> Inventory:
    """What must be on record before the first apply: all that was, and all that is wanted."""
    result = {name: dict(entries) for name, entries in inventory.items()}
    for name, refs in wanted.items():
        entries = result.setdefault(name, {})
        for ref in refs:
            known = entries.get(ref.key)
            entries[ref.key] = Owned(ref, known.uid if known else "")
    return {name: entries for name, entries in result.items() if entries}


def covers(recorded: Inventory, needed: Inventory) -> bool:
    """Whether a record already names everything needed; UIDs do not matter here."""
    return all(key in recorded.get(name, {}) for name, entries in needed.items() for key in entries)
