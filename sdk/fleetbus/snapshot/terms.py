"""The index terms of an object: its labels, and the UIDs of its owners.

They are cut out of the bytes without building the object, and kept in the guard, so that an old
index entry can be removed without reading the old body.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fleetbus.ownership import OWNER_UID_LABEL

SEP, ITEM = "\x1f", "\x1e"
"""Separate the fields of a guard, and the items of a list inside a field."""


class Terms(NamedTuple):
    """Both lists joined by `ITEM`, sorted, so that equal sets are equal texts."""

    labels: str
    """`<name>=<value>` of each label."""
    owners: str
    """UIDs by ownerReference and by our owner mark."""


UNKNOWN = "="
"""In place of labels: they are not known, as the body is not. No label has an empty name, so such
objects have an index set of their own."""
NO_TERMS = Terms("", "")
UNKNOWN_TERMS = Terms(UNKNOWN, "")


class _OwnerReference(msgspec.Struct):
    uid: str = ""


class _Metadata(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    owner_references: list[_OwnerReference] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)


def read_terms(body: bytes) -> Terms | None:
    """The terms of an object's JSON; None when its metadata cannot be read (rule W16)."""
    try:
        metadata = _decoder.decode(body).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    labels = metadata.labels or {}
    owners = {reference.uid for reference in metadata.owner_references or ()}
    if mark := labels.get(OWNER_UID_LABEL):
        owners.add(mark)
    owners.discard("")
    return Terms(_join([f"{name}={value}" for name, value in labels.items()]), _join([*owners]))


def _join(terms: list[str]) -> str:
    """Control bytes separate the fields of a guard; no valid label or UID holds one."""
    if not "".join(terms).isprintable():
        terms = [term for term in terms if term.isprintable()]
    return ITEM.join(sorted(terms))
