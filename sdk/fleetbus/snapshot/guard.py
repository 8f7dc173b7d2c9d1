"""The guard of one key, as guard.lua writes it (proto's `keys.guards` has the fields)."""

from __future__ import annotations

from typing import NamedTuple

from fleetbus.snapshot.terms import ITEM, SEP, UNKNOWN
from fleetbus_proto.versions import version_key

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
