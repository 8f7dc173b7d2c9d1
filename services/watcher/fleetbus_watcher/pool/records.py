"""The pool as the bucket has it: signs of life, and leases (rule W22).

A lease names a member and nothing else: it holds as long as that member gives signs of life, so
that a thousand leases need no more renewals than one. Signs are numbers that change; who reads
them measures with a monotonic clock of its own, and the clocks of others do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import DECODE_ERRORS, Entry, KeyValue
from fleetbus_proto.keys import (
    KV_POOL_LEASES,
    KV_POOL_MEMBERS,
    kv_pool_lease,
    kv_pool_member,
)

log = structlog.get_logger()

_SIGN_LASTS: Final = "10m"
"""In the bucket: pods come with ever new names."""
State = Literal["active", "leaving", "left"]
R = TypeVar("R", bound=msgspec.Struct)


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life of one member; the value of its key, as JSON."""

    boot: str
    """Which process; two of one name are a mistake."""
    beat: int
    """Counts the signs, so that each is another one."""
    state: State = "active"
    """`leaving` gives its clusters away, `left` has none any more."""
    owned: int = 0
    """How many leases name it; for people."""
    selector: str = ""
    """Which clusters it takes; members with another selector are another pool."""


class Lease(msgspec.Struct, frozen=True):
    """The value of the key of a cluster, as JSON."""

    member: str


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the bucket held it."""

    member: str
    revision: int


_sign_decoder: Final = msgspec.json.Decoder(Sign)
_lease_decoder: Final = msgspec.json.Decoder(Lease)


class Records:
    """Reads and writes both.

    Every method raises BusError when nothing is known.
    """

    def __init__(self, bus: Bus, kv: KeyValue) -> None:
        self._bus = bus
        self._kv = kv

    async def sign(self, member: str, sign: Sign) -> None:
        """Give a sign of life."""
        await self._kv.put(kv_pool_member(member), msgspec.json.encode(sign), ttl=_SIGN_LASTS)

    async def signs(self) -> dict[str, tuple[Sign, int]]:
        """The last sign of each member, with its revision."""
        found = await scan_keys(self._bus, KV_POOL_MEMBERS)
        return {
            name: (sign, entry.revision)
            for name, entry in _below(KV_POOL_MEMBERS, found)
            if (sign := read_sign(entry.value)) is not None
        }

    async def leases(self) -> dict[str, Held]:
        """The lease of each cluster that has one."""
        found = await scan_keys(self._bus, KV_POOL_LEASES)
        return {
            cluster: Held(lease.member if lease is not None else "", entry.revision)
            for cluster, entry in _below(KV_POOL_LEASES, found)
            for lease in [_read(_lease_decoder, entry.value)]
        }

    async def take(self, cluster: str, member: str, held: Held | None) -> Held | None:
        """Write the lease of a cluster, if it still is what was seen; None if it is not."""
        key, value = kv_pool_lease(cluster), msgspec.json.encode(Lease(member))
        revision = await self._kv.update(key, value, held.revision if held is not None else 0)
        return Held(member, revision) if revision is not None else None

    async def drop(self, cluster: str) -> None:
        """Take away the lease of a cluster that left the fleet."""
        await self._kv.delete(kv_pool_lease(cluster))


class Peers:
    """Who lives: whoever's sign has changed lately, in time that we have seen pass.

    Time counts only between two looks, and only so much as two looks are apart: after a pause of
    our own process, or of NATS, nobody is dead just because we did not look.

    Args:
        lease: how long a member may be silent.
        interval: between two looks, in seconds; a longer one counts as two of these.
    """

    def __init__(self, *, lease: float, interval: float) -> None:
        self._lease = lease
        self._most = 2 * interval
        self._seen: dict[str, _Seen] = {}
        self._looked_at: float | None = None

    def look(self, signs: Mapping[str, tuple[Sign, int]], now: float) -> None:
        """Take what a look has found; `now` is monotonic, in seconds."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, self._most)
        self._looked_at = now
        for name, (sign, revision) in signs.items():
            seen = self._seen.get(name)
            if seen is None or seen.revision != revision:
                self._seen[name] = _Seen(sign, revision)
            else:
                seen.silent += passed
        for name in self._seen.keys() - signs.keys():
            # Not gone at once: the bucket may have been lost, and everybody signs again.
            self._seen[name].silent += passed
        for name in [name for name in self._seen if name not in signs and not self.lives(name)]:
            del self._seen[name]

    def sign_of(self, member: str) -> Sign | None:
        """The last sign of a member; None if it was never seen."""
        seen = self._seen.get(member)
        return seen.sign if seen is not None else None

    def lives(self, member: str) -> bool:
        """Whether a member works on what its leases name."""
        seen = self._seen.get(member)
        return seen is not None and seen.sign.state != "left" and seen.silent < self._lease

    def active(self, selector: str) -> list[str]:
        """Who takes clusters of this selector."""
        return sorted(
            name
            for name, seen in self._seen.items()
            if self.lives(name) and (seen.sign.state, seen.sign.selector) == ("active", selector)
        )


@dataclass(slots=True)
class _Seen:
    sign: Sign
    revision: int
    silent: float = 0.0


def read_sign(value: bytes) -> Sign | None:
    """What a key of a member says; None if it cannot be read."""
    return _read(_sign_decoder, value)


def _below(prefix: str, found: Mapping[str, Entry]) -> Iterable[tuple[str, Entry]]:
    return ((key.removeprefix(f"{prefix}."), entry) for key, entry in found.items())


def _read(decoder: msgspec.json.Decoder[R], value: bytes) -> R | None:
    try:
        return decoder.decode(value)
    except DECODE_ERRORS as e:
        log.warning("pool_record_unreadable", error=str(e))
        return None
