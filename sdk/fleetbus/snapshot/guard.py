"""The order guard of one key, as guard.lua writes it (`keys.guards` in proto lists its fields).

A guard also holds the index terms of its object: the labels, and the UIDs of the owners. They are
decoded without building the object. Since the old terms are in the guard, old index entries can be
removed without the old body, which may be large or gone.
"""

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
"""A sortable rank: list resourceVersion and epoch id, both from digit strings (rule P2)."""


class Guard(NamedTuple):
    """State and versions of a key, by which `apply` decides whether an event is newer.

    Numbers stay digit strings: they may exceed 2^53, where the doubles of Lua lose digits, and both
    sides must compare alike (rule P2).
    """

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
        """Whether this is an object and not a tombstone."""
        return self.state == LIVE

    def mark(self, scope: str) -> RankKey | None:
        """The rank of the scope's last list that held the key; None if the scope never saw it."""
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
        """The labels of the object; empty if they are unknown."""
        terms = (term for term in self.labels.split(ITEM) if term and term != UNKNOWN)
        pairs = (term.partition("=") for term in terms)
        return {name: value for name, _, value in pairs}


def read_guard(raw: bytes) -> Guard:
    """Decode a guard that apply.lua wrote."""
    return Guard(*raw.decode().split(SEP))


class Terms(NamedTuple):
    """Index terms, each list sorted and joined by `ITEM`: equal sets are equal strings."""

    labels: str
    """`<name>=<value>` of each label."""
    owners: str
    """UIDs of owners, by ownerReference and by our owner label."""


UNKNOWN = "="
"""In place of labels that are unknown, because the body is. No label has an empty name, so it gets
an index set of its own, which lists such objects."""
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
    """Extract the terms from the JSON of an object; None if it is unreadable (rule W16)."""
    try:
        metadata = _decoder.decode(body).metadata
        if not body.isascii():
            body.decode()  # the decoder does not look into strings that nobody asks for
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    labels = metadata.labels or {}
    owners = {reference.uid for reference in metadata.owner_references or ()}
    if mark := labels.get(OWNER_UID_LABEL):
        owners.add(mark)
    owners.discard("")
    return Terms(_join([f"{name}={value}" for name, value in labels.items()]), _join([*owners]))


def _join(terms: list[str]) -> str:
    """Join terms without those that hold control bytes, which separate the fields of a guard.

    No valid label or UID holds one, but nobody has validated what came from the bus.
    """
    if not "".join(terms).isprintable():
        terms = [term for term in terms if term.isprintable()]
    return ITEM.join(sorted(terms))
