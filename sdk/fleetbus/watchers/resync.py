"""A relist, or an audit, that somebody asks a watcher for (rules W20, W18).

The wish is a key of the bucket, so that it survives restarts of both sides; the message on
`fleetbus.control.<cluster>` only wakes the watcher.
"""

from __future__ import annotations

import secrets

import msgspec

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import UNREADABLE, KeyValue
from fleetbus.bus.send import send
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import kv_wanted, kv_wanted_audit
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import control_subject


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The value of the key, as JSON."""

    min_epoch: int
    """An epoch with a smaller id does not satisfy the wish."""
    reason: str = ""
    incarnation: int = 0
    """The highest incarnation number that the projector has seen of this cluster (W23)."""
    epoch: int = 0
    """The highest epoch id that the projector has seen of this resource."""
    refused: int = 0
    """A number that the projector has refused as too far ahead; 0 if it has not (B8)."""

    def refuses(self, number: int, now_ms: int) -> bool:
        """Whether a number of ours was claimed by a clock that was ahead, and is right now."""
        # A clock that is behind now must not call what it claims for this wish too far ahead.
        return bool(self.refused) and is_too_far_ahead(number, max(now_ms, self.min_epoch))


_decoder = msgspec.json.Decoder(Wanted)


def encode_wanted(wanted: Wanted) -> bytes:
    """The bytes of the key."""
    return msgspec.json.encode(wanted)


def decode_wanted(value: bytes) -> Wanted:
    """Read the bytes of the key.

    Raises:
        MalformedMessage: they are something else.
    """
    try:
        return _decoder.decode(value)
    except UNREADABLE as e:
        raise MalformedMessage(f"not a wanted epoch: {e}") from e


async def read_wanted(kv: KeyValue, cluster: str, resource: Resource) -> Wanted | None:
    """The wish for a resource; None if nobody has one, or nobody can read it.

    Raises:
        BusError: nothing is known.
    """
    entry = await kv.get(kv_wanted(cluster, resource.group, resource.plural))
    if entry is None:
        return None
    try:
        return decode_wanted(entry.value)
    except MalformedMessage:
        return None


async def want_epoch(
    bus: Bus, kv: KeyValue, cluster: str, resource: Resource, wanted: Wanted
) -> None:
    """Ask the cluster's watchers for a relist, and wake them.

    Raises:
        BusError: the wish may not have been written.
    """
    key = kv_wanted(cluster, resource.group, resource.plural)
    await kv.put(key, encode_wanted(wanted))
    await wake_watchers(bus, cluster)


async def wake_watchers(bus: Bus, cluster: str) -> None:
    """Make a cluster's watchers read their wishes now.

    Raises:
        BusError: they may not have heard it, and look later.
    """
    await send(bus, control_subject(cluster))


async def want_audit(bus: Bus, kv: KeyValue, cluster: str) -> str:
    """Ask the cluster's watchers for an audit of everything, now; answers the request.

    Raises:
        BusError: it may not have been written.
    """
    request = secrets.token_hex(8)
    await kv.put(kv_wanted_audit(cluster), request.encode())
    await wake_watchers(bus, cluster)
    return request


async def read_wanted_audit(kv: KeyValue, cluster: str) -> str:
    """The last request for an audit; empty if there never was one.

    Raises:
        BusError: nothing is known.
    """
    entry = await kv.get(kv_wanted_audit(cluster))
    return entry.value.decode(errors="replace") if entry is not None else ""
