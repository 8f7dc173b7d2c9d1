"""Records in the status what we are about to own, before the first apply (rule D2).

A crash between an apply and its record then leaves nothing behind that the next round does not
know. The record is the union of what is wanted and what is not yet known to be gone; the UIDs are
filled in once an apply has confirmed them. Objects are listed once, a cluster refers to them by
index, and not at all when it has all of them; only the UIDs grow as objects x clusters, so there
must be room for all of them before the first apply. An intent of more than 1 MiB is in parts, each
of some clusters, which `hub.chunks` stores beside the status.

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
from zlib import crc32

import orjson

from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.render.template import ObjectRef

MAX_BYTES = 1024 * 1024
"""etcd accepts 1.5 MiB for the whole object; spec and conditions need their part."""
PART_BYTES = 256 * 1024
"""About the size of a part, of an intent that is larger."""
MAX_PARTS = 256
"""A status lists that many chunks in 40 KB."""

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
    ran: str = ""
    """For an object that runs once: a digest of the template that was started, and how it ended."""

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
    digest = hashlib.sha256()
    for part in _parts_of(status):
        entries = cast("list[dict[str, Any]]", part.get("clusters", []))
        without_uids = [{key: entry[key] for key in entry if key != "uids"} for entry in entries]
        shown_part = [part.get("objects"), without_uids]
        digest.update(orjson.dumps(shown_part, option=orjson.OPT_SORT_KEYS))
    return digest.digest()


def _parts_of(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The intent as one part, or as several if it is large."""
    stored = cast("dict[str, Any]", status.get("intent") or {})
    return cast("list[dict[str, Any]]", stored["parts"]) if "parts" in stored else [stored]


def read(status: Mapping[str, Any]) -> Inventory:
    """Read the intent from the status of a MultiClusterResource.

    Raises:
        IntentError: `write` did not write it, so nothing may be concluded from it.
    """
    raw: Any = status.get("intent")
    if raw is None:
        return {}
    if "chunks" in raw:
        raise IntentError("status.intent is in chunks that were not read; nothing is concluded")
    try:
        inventory: Inventory = {}
        for part in _parts_of(status):
            objects = [_to_ref(item) for item in part.get("objects", [])]
            inventory |= {
                str(entry["name"]): _read_cluster(entry, objects)
                for entry in part.get("clusters", [])
            }
        mark = Mark(raw.get("mark", Mark.NONE))
        return _with_mark(inventory, mark) if mark else inventory
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise IntentError(_MALFORMED) from error


def read_bases(status: Mapping[str, Any]) -> dict[str, Basis]:
    """Read the bases beside the intent; a cluster may have none.

    Raises:
        IntentError: `write` did not write them.
    """
    try:
        return {
            str(entry["name"]): Basis(int(entry["generation"]), str(entry["labels"]))
            for part in _parts_of(status)
            for entry in cast("list[dict[str, Any]]", part.get("clusters", []))
            if "generation" in entry and "labels" in entry
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
    ran = {
        int(entry["object"]): str(entry["of"]) for entry in cast("list[Any]", fields.get("ran", []))
    }
    owned = [
        Owned(objects[index], str(uid), marks.get(index, Mark.NONE), ran.get(index, ""))
        for index, uid in zip(indexes, uids, strict=True)
    ]
    return {each.ref.key: each for each in owned}


def write(inventory: Inventory, bases: Bases = _NO_BASES) -> dict[str, Any]:
    """Build the stored form; equal inventories give equal trees.

    Raises:
        IntentError: it is too large, also in parts.
    """
    tree = _write_part(inventory, bases)
    size = len(orjson.dumps(tree))
    if size <= MAX_BYTES:
        return tree
    if size > MAX_PARTS * PART_BYTES:
        raise IntentError(
            f"{len(tree['objects'])} objects on {len(tree['clusters'])} clusters are more than "
            "one MultiClusterResource can record; split it"
        )
    # A power of two, so that a few clusters more or less leave most parts as they are.
    number = 1 << (size // PART_BYTES).bit_length()
    shares: list[Inventory] = [{} for _ in range(number)]
    for name, entries in inventory.items():
        shares[crc32(name.encode()) % number][name] = entries
    # A mark that all objects have is beside the parts: it is set on a MultiClusterResource whose
    # namespace is terminating, where no other part could be created.
    marks = {owned.mark for entries in inventory.values() for owned in entries.values()}
    common = Mark.CONFIRMED if marks == {Mark.CONFIRMED} else Mark.NONE
    if common:
        shares = [_with_mark(share, Mark.NONE) for share in shares]
    parts = [_write_part(share, bases) for share in shares if any(share.values())]
    return {"parts": parts, "mark": common.value} if common else {"parts": parts}


def _with_mark(inventory: Inventory, mark: Mark) -> Inventory:
    return {
        name: {key: replace(owned, mark=mark) for key, owned in entries.items()}
        for name, entries in inventory.items()
    }


def _write_part(inventory: Inventory, bases: Bases) -> dict[str, Any]:
    refs = sorted(
        {owned.ref for entries in inventory.values() for owned in entries.values()},
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
    return {"objects": objects, "clusters": clusters}


def check_room(inventory: Inventory, bases: Bases = _NO_BASES) -> None:
    """Refuse an intent that would become too large once every apply has confirmed its UID.

    Raises:
        IntentError: it is too large.
    """
    write(
        {
            name: {key: replace(owned, uid=owned.uid or _ANY_UID) for key, owned in entries.items()}
            for name, entries in inventory.items()
        },
        bases,
    )


def _write_basis(basis: Basis | None) -> dict[str, Any]:
    return {"generation": basis.generation, "labels": basis.labels} if basis else {}


def _write_cluster(
    name: str, entries: Mapping[Key, Owned], index: Mapping[ObjectRef, int]
) -> dict[str, Any]:
    numbered = sorted((index[owned.ref], owned.uid, owned.mark) for owned in entries.values())
    numbers = [number for number, _, _ in numbered]
    stored: dict[str, Any] = {"name": name}
    if numbers != list(range(len(index))):
        stored["objects"] = numbers
    if any(uid for _, uid, _ in numbered):
        stored["uids"] = [uid for _, uid, _ in numbered]
    for mark in _MARKS:
        if marked := [number for number, _, of in numbered if of is mark]:
            stored[mark.value] = marked
    ran = sorted((index[owned.ref], owned.ran) for owned in entries.values() if owned.ran)
    if ran:
        stored["ran"] = [{"object": number, "of": of} for number, of in ran]
    return stored


def outdated_keys(entries: Mapping[Key, Owned]) -> set[Key]:
    """The objects of a cluster that must be recreated, and no edit requests that."""
    return {key for key, owned in entries.items() if owned.mark is Mark.OUTDATED}


def covers(recorded: Inventory, needed: Inventory) -> bool:
    """Whether a record has everything that it needs before the first write.

    That is every object, and which of them go because an edit or a person requested it: a crash
    must not lose that. UIDs and other marks can wait for the end of the round.
    """
    return all(
        (recorded_object := recorded.get(name, {}).get(key)) is not None
        and _answer(recorded_object) == _answer(owned)
        for name, entries in needed.items()
        for key, owned in entries.items()
    )


def _answer(owned: Owned) -> Mark | None:
    return owned.mark if owned.mark in (Mark.DROPPED, Mark.CONFIRMED) else None
