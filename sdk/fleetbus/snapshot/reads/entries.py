"""Objects and clusters as reads of the snapshot return them, and pages of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fleetbus.snapshot.reads.paging import Position, write_token
from fleetbus_proto.keys import object_key, split_object_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus.snapshot.guard import Guard
    from fleetbus.snapshot.records import ClusterRecord
    from fleetbus_proto.keys import SnapshotKeys


class Entry(NamedTuple):
    """One object of the snapshot, or the last state of a deleted one."""

    cluster: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    body: bytes
    """JSON as served; empty if unknown (see `degraded`)."""
    counter: int
    """The snapshot's counter at the change that wrote this."""
    degraded: str
    """Why the body is missing or incomplete: `oversized`, `unreadable`, `absent`; else empty."""
    incarnation: int
    """Number of the cluster's history that the resourceVersion belongs to."""


class AvailableClusters(NamedTuple):
    """The clusters of the fleet whose shards answer."""

    records: Sequence[ClusterRecord]
    away: frozenset[int]
    """The shards that do not."""
    keys: SnapshotKeys

    def is_away(self, cluster: str) -> bool:
        """Whether nothing can be known of a cluster at present, nor whether it is in the fleet."""
        return self.keys.shard_of(cluster) in self.away


class KnownObject(NamedTuple):
    """An object or a tombstone, with the version that the order guard compares (rule P2)."""

    entry: Entry
    is_live: bool
    """Else the entry is a tombstone: the last state of a deleted object, without its body."""

    @property
    def version(self) -> tuple[int, str]:
        """Incarnation number and resourceVersion, of the object or of its deletion."""
        return self.entry.incarnation, self.entry.resource_version


class ObjectVersion(NamedTuple):
    """The version of an object or of its deletion, as the order guard compares it (rule P2)."""

    incarnation: int
    resource_version: str
    is_live: bool

    @property
    def version(self) -> tuple[int, str]:
        """Incarnation number and resourceVersion."""
        return self.incarnation, self.resource_version


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, in the order (cluster, namespace/name).

    Attributes:
        entries: the objects, without those deleted while the page was read.
        continue_token: the position of the next page; empty on the last one.
        remaining: how many objects come after this page; None if not counted.
        counter: the snapshot's counter before the first row of the first page was read (rule A5):
            a watch from there may repeat what is listed, but misses nothing. The same on all pages.
        generation: of the store.
    """

    entries: list[Entry]
    continue_token: str
    remaining: int | None
    counter: int
    generation: str

    def token_after(self, entry: Entry) -> str:
        """The continue token of a page that ends with one of these objects."""
        key = member_of(entry.namespace, entry.name)
        return write_token(Position(self.generation, self.counter, entry.cluster, key))


def member_of(namespace: str, name: str) -> bytes:
    """The key of an object in the hashes and indexes of its resource."""
    return object_key(namespace, name).encode()


def make_entry(cluster: str, key: bytes, guard: Guard, body: bytes) -> Entry:
    """Make an entry of a row."""
    namespace, name = split_object_key(key.decode())
    return Entry(
        cluster,
        namespace,
        name,
        guard.uid,
        guard.resource_version,
        body,
        int(guard.counter),
        guard.degraded,
        int(guard.incarnation),
    )
