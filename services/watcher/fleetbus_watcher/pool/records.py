"""The members and leases of the pool, as records in the bucket (rule W22).

A lease names a member and nothing else: it is valid as long as that member renews its own record,
so that a thousand leases need no more renewals than one. Renewals are numbers that change; each
reader measures their age with its own monotonic clock, so clocks of members need not agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import DECODE_ERRORS, Entry, KeyValue
from fleetbus.bus.recent_revisions import POLL
from fleetbus_proto.keys import (
    KV_POOL_LEASES,
    KV_POOL_MEMBERS,
    kv_pool_lease,
    kv_pool_member,
)

log = structlog.get_logger()

_MEMBER_TTL: Final = "10m"
"""Lifetime of a member's record in the bucket, because pods get new names again and again."""
State = Literal["active", "leaving", "left"]
R = TypeVar("R", bound=msgspec.Struct)


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a member's key, as JSON; renewed while the member is alive."""

    boot: str
    """A random id of the process; two processes with one name are a mistake."""
    beat: int
    """Counts the renewals, so that each value differs."""
    state: State = "active"
    """A `leaving` member hands its clusters over, one that has `left` holds none."""
    owned: int = 0
    """Number of leases that name it; for people."""
    selector: str = ""
    """Which clusters it takes; members with another selector are another pool."""


class Lease(msgspec.Struct, frozen=True):
    """The value of a cluster's key, as JSON."""

    member: str


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease with its revision in the bucket."""

    member: str
    revision: int


_member_decoder: Final = msgspec.json.Decoder(MemberRecord)
_lease_decoder: Final = msgspec.json.Decoder(Lease)


class PoolStore:
    """Reads and writes the records.

    Every method raises BusError if it could not be done.
    """

    def __init__(self, bus: Bus, kv: KeyValue) -> None:
        self._bus = bus
        self._kv = kv

    async def renew(self, member: str, record: MemberRecord) -> None:
        """Write the record of a member."""
        await self._kv.put(kv_pool_member(member), msgspec.json.encode(record), ttl=_MEMBER_TTL)

    async def members(self) -> dict[str, tuple[MemberRecord, int]]:
        """Read the record of each member, with its revision."""
        entries = await scan_keys(self._bus, KV_POOL_MEMBERS)
        return {
            name: (record, entry.revision)
            for name, entry in _below(KV_POOL_MEMBERS, entries)
            if (record := decode_member(entry.value)) is not None
        }

    async def leases(self) -> dict[str, StoredLease]:
        """Read the lease of each cluster that has one."""
        entries = await self._scan_leases()
        return {
            cluster: StoredLease(lease.member if lease is not None else "", entry.revision)
            for cluster, entry in _below(KV_POOL_LEASES, entries)
            for lease in [_decode(_lease_decoder, entry.value)]
        }

    async def _scan_leases(self) -> dict[str, Entry]:
        """Read all, at least as new as those that we have written.

        Otherwise a replica of the bucket that lags would show a lease that we have just taken as
        another member's, and we would stop the work for its cluster.
        """
        while True:
            entries = await scan_keys(self._bus, KV_POOL_LEASES)
            revisions = {key: entry.revision for key, entry in entries.items()}
            if not self._kv.seen.is_any_outdated(KV_POOL_LEASES, revisions):
                return entries
            await asyncio.sleep(POLL.total_seconds())

    async def take(
        self, cluster: str, member: str, before: StoredLease | None
    ) -> StoredLease | None:
        """Write the lease of a cluster by compare-and-set; None if it has changed."""
        key, value = kv_pool_lease(cluster), msgspec.json.encode(Lease(member))
        revision = await self._kv.update(key, value, before.revision if before is not None else 0)
        return StoredLease(member, revision) if revision is not None else None

    async def drop(self, cluster: str) -> None:
        """Delete the lease of a cluster that left the fleet."""
        await self._kv.delete(kv_pool_lease(cluster))


class MemberTracker:
    """Which members are alive: those whose record changed recently, in time that we observed.

    Time counts only between two updates, and only as much as two updates are apart: after a pause
    of our own process, or of NATS, no member is dead just because we did not read.

    Args:
        lease: how long a member may be silent, in seconds.
        interval: between two updates, in seconds; a longer one counts as two of these.
    """

    def __init__(self, *, lease: float, interval: float) -> None:
        self._lease = lease
        self._most = 2 * interval
        self._sightings: dict[str, _Sighting] = {}
        self._updated_at: float | None = None

    def update(self, members: Mapping[str, tuple[MemberRecord, int]], now: float) -> None:
        """Take the records that were read; `now` is monotonic, in seconds."""
        passed = 0.0 if self._updated_at is None else min(now - self._updated_at, self._most)
        self._updated_at = now
        for name, (record, revision) in members.items():
            sighting = self._sightings.get(name)
            if sighting is None or sighting.revision != revision:
                self._sightings[name] = _Sighting(record, revision)
            else:
                sighting.silent += passed
        for name in self._sightings.keys() - members.keys():
            # Not gone at once: the bucket may have been lost, and all members write again.
            self._sightings[name].silent += passed
        for name in [n for n in self._sightings if n not in members and not self.is_alive(n)]:
            del self._sightings[name]

    def record_of(self, member: str) -> MemberRecord | None:
        """Return the last record of a member; None if it was never seen."""
        sighting = self._sightings.get(member)
        return sighting.record if sighting is not None else None

    def is_alive(self, member: str) -> bool:
        """Whether the leases of a member are valid."""
        sighting = self._sightings.get(member)
        return (
            sighting is not None
            and sighting.record.state != "left"
            and sighting.silent < self._lease
        )

    def active(self, selector: str) -> list[str]:
        """Return the members that take clusters of this selector."""
        return sorted(
            name
            for name, sighting in self._sightings.items()
            if self.is_alive(name)
            and (sighting.record.state, sighting.record.selector) == ("active", selector)
        )


@dataclass(slots=True)
class _Sighting:
    record: MemberRecord
    revision: int
    silent: float = 0.0


def decode_member(value: bytes) -> MemberRecord | None:
    """Decode the record of a member; None if it is malformed."""
    return _decode(_member_decoder, value)


def _below(prefix: str, entries: Mapping[str, Entry]) -> Iterable[tuple[str, Entry]]:
    return ((key.removeprefix(f"{prefix}."), entry) for key, entry in entries.items())


def _decode(decoder: msgspec.json.Decoder[R], value: bytes) -> R | None:
    try:
        return decoder.decode(value)
    except DECODE_ERRORS as e:
        log.warning("pool_record_unreadable", error=str(e))
        return None
