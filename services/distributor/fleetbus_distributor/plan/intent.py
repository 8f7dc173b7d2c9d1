"""Records in the status what we are about to own, before the first apply (rule D2).

A crash between an apply and its record then leaves nothing behind that the next round does not
know. The record is the union of what is wanted and what is not yet known to be gone; the UIDs are
filled in once an apply has confirmed them. Objects are listed once, a cluster refers to them by
index, and not at all when it has all of them; only the UIDs grow as objects x clusters, so there
must be room for all of them before the first apply.

Beside the objects of a cluster is the basis of the last round: the generation of the spec and the
labels of the cluster. What a change means for an object, an edit or something that nobody
requested, is evaluated once, when the basis changes; the mark of the object keeps the result until
the object is applied or gone (rule D8).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias, cast

from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.render.template import ObjectRef

MAX_BYTES = 1024 * 1024
"""etcd accepts 1.5 MiB for the whole object; spec and conditions need their part."""

_ANY_UID = "0" * 36
_DIGEST = 8
_MALFORMED = "status.intent is malformed; nothing is applied or pruned"

Key: TypeAlias = tuple[str, str, str, str]


class Mark(StrEnum):
    """Whether the deletion of an object was requested; the values are fields of the record."""

    NONE = ""
    DROPPED = "dropped"
    """No longer wanted because of an edit of the spec."""
    CONFIRMED = "confirmed"
    """No longer wanted, and a person confirmed its deletion."""
    UNREQUESTED = "unrequested"
    """No longer wanted, for a reason other than an edit."""
    REPLACEABLE = "replaceable"
    """Not applied since an edit, or since the limits or a person allowed its replacement: it may be
    deleted and recreated (policy recreate)."""
    RELABELLED = "relabelled"
    """Not applied since the labels of its cluster changed: a later edit allows no replacement."""
    OUTDATED = "outdated"
    """It must be deleted and recreated, and no edit requests that."""


_MARKS = tuple(mark for mark in Mark if mark is not Mark.NONE)


@dataclass(frozen=True, slots=True)
class Owned:
    """An object that is, or is about to be, ours on one cluster."""

    ref: ObjectRef
    uid: str = ""
    """Empty until an apply has confirmed it."""
    mark: Mark = Mark.NONE

    @property
    def kind(self) -> str:
        """The Kubernetes kind."""
        return self.ref.kind


Inventory: TypeAlias = dict[str, dict[Key, Owned]]
"""Cluster → key → object."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Why a cluster has its objects: the generation of the spec, and a digest of the labels."""

    generation: int
    labels: str


Bases: TypeAlias = Mapping[str, Basis]
"""Cluster → basis."""


def digest_of(labels: Mapping[str, str]) -> str:
    """Hash the labels of a cluster."""
    text = json.dumps(labels, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


_NO_BASES: Bases = {}


def digest_of_record(status: Mapping[str, Any]) -> bytes:
    """Hash a stored intent without its UIDs."""
    stored = cast("dict[str, Any]", status.get("intent") or {})
    entries = cast("list[dict[str, Any]]", stored.get("clusters", []))
    shown = [{key: part for key, part in one.items() if key != "uids"} for one in entries]
    text = json.dumps([stored.get("objects"), shown], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def read(status: Mapping[str, Any]) -> Inventory:
    """Read the intent from the status of a MultiClusterResource.

    Raises:
        IntentError: `write` did not write it, so nothing may be concluded from it.
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
        raise IntentError(_MALFORMED) from error


def read_bases(status: Mapping[str, Any]) -> dict[str, Basis]:
    """Read the bases beside the intent; a cluster may have none.

    Raises:
        IntentError: `write` did not write them.
    """
    try:
        entries = cast("list[dict[str, Any]]", (status.get("intent") or {}).get("clusters", []))
        return {
            str(one["name"]): Basis(int(one["generation"]), str(one["labels"]))
            for one in entries
            if "generation" in one and "labels" in one
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise IntentError(_MALFORMED) from error


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
    marks = {index: mark for mark in _MARKS for index in cast("list[int]", fields.get(mark, []))}
    pairs = zip(indexes, uids, strict=True)
    owned = [Owned(objects[index], str(uid), marks.get(index, Mark.NONE)) for index, uid in pairs]
    return {one.ref.key: one for one in owned}


def write(inventory: Inventory, bases: Bases = _NO_BASES) -> dict[str, Any]:
    """Build the stored form; equal inventories give equal trees.

    Raises:
        IntentError: it would not fit into the status.
    """
    refs = sorted(
        {one.ref for entries in inventory.values() for one in entries.values()},
        key=lambda ref: (ref.key, ref.api_version),
    )
    index = {ref: number for number, ref in enumerate(refs)}
    clusters = [
        _write_cluster(name, entries, index) | _write_basis(bases.get(name))
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


def check_room(inventory: Inventory, bases: Bases = _NO_BASES) -> None:
    """Refuse an intent that would become too large once every apply has confirmed its UID.

    Raises:
        IntentError: it would not fit into the status.
    """
    write(
        {
            name: {key: replace(one, uid=one.uid or _ANY_UID) for key, one in entries.items()}
            for name, entries in inventory.items()
        },
        bases,
    )


def _write_basis(basis: Basis | None) -> dict[str, Any]:
    return {"generation": basis.generation, "labels": basis.labels} if basis else {}


def _write_cluster(
    name: str, entries: Mapping[Key, Owned], index: Mapping[ObjectRef, int]
) -> dict[str, Any]:
    numbered = sorted((index[one.ref], one.uid, one.mark) for one in entries.values())
    numbers = [number for number, _, _ in numbered]
    stored: dict[str, Any] = {"name": name}
    if numbers != list(range(len(index))):
        stored["objects"] = numbers
    if any(uid for _, uid, _ in numbered):
        stored["uids"] = [uid for _, uid, _ in numbered]
    for mark in _MARKS:
        if marked := [number for number, _, of in numbered if of is mark]:
            stored[mark.value] = marked
    return stored


def outdated_keys(entries: Mapping[Key, Owned]) -> set[Key]:
    """The objects of a cluster that must be recreated, and no edit requests that."""
    return {key for key, one in entries.items() if one.mark is Mark.OUTDATED}


def covers(recorded: Inventory, needed: Inventory) -> bool:
    """Whether a record has everything that it needs before the first write.

    That is every object, and which of them go because an edit or a person requested it: a crash
    must not lose that. UIDs and other marks can wait for the end of the round.
    """
    return all(
        (known := recorded.get(name, {}).get(key)) is not None and _answer(known) == _answer(one)
        for name, entries in needed.items()
        for key, one in entries.items()
    )


def _answer(owned: Owned) -> Mark | None:
    return owned.mark if owned.mark in (Mark.DROPPED, Mark.CONFIRMED) else None
