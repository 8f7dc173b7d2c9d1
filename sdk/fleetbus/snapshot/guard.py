"""The guard of one key, as guard.lua writes it (proto's `keys.guards` has the fields)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus_proto.versions import version_key

SEP, ITEM = "\x1f", "\x1e"
"""Separate the fields of a guard, and the items of a list inside a field."""
_PART = "\x1d"
LIVE = "L"

RankKey = tuple[tuple[int, str], tuple[int, str]]
"""A sortable rank: list resourceVersion, epoch id, both as digit strings (rule P2)."""


class Guard(NamedTuple):
    """What the snapshot knows of a key beside its body; numbers stay digit strings."""

    state: str
    resource_version: str
    incarnation: str
    counter: str
    uid: str
    degraded: str
    marks: str
    labels: str
    owners: str

    @property
    def is_live(self) -> bool:
        """Whether this is an object, and not a tombstone."""
        return self.state == LIVE

    def mark(self, scope: str) -> RankKey | None:
        """The rank that last listed the key in this scope; None when the scope never saw it."""
        for mark in self.marks.split(ITEM):
            name, _, rank = mark.partition(_PART)
            if name == scope and rank:
                version, _, epoch_id = rank.partition(_PART)
                return (version_key(version), version_key(epoch_id))
        return None

    @property
    def scopes(self) -> set[str]:
        """The scopes that have seen the key."""
        return {mark.partition(_PART)[0] for mark in self.marks.split(ITEM) if mark}

    def label_map(self) -> dict[str, str]:
        """The labels of the object; none if they are not known."""
        terms = (term for term in self.labels.split(ITEM) if term and term != UNKNOWN)
        pairs = (term.partition("=") for term in terms)
        return {name: value for name, _, value in pairs}


def read_guard(raw: bytes) -> Guard:
    """Read a guard that apply.lua wrote."""
    return Guard(*raw.decode().split(SEP))


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
