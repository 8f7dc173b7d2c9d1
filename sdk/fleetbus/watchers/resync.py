"""Requests to a cluster's watchers for a relist or an audit (rules W20, W18).

A request is a key of the bucket, so it survives restarts of both sides; the message on
`fleetbus.control.<cluster>` only wakes the watchers.
"""

from __future__ import annotations

import secrets

import msgspec

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import kv_audit_request, kv_resync
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import control_subject


class ResyncRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The value of a resync key, as JSON."""

    min_epoch: int
    """The lowest epoch id that satisfies the request."""
    reason: str = ""
    incarnation: int = 0
    """The highest incarnation number of this cluster that the projector has seen (W23)."""
    epoch: int = 0
    """The highest epoch id of this resource that the projector has seen."""
    refused: int = 0
    """A number that the projector refused as too far ahead; 0 for none (B8)."""

    def refuses(self, number: int, now_ms: int) -> bool:
        """Whether a number was claimed while our clock was ahead, and must be claimed again."""
        # A clock that is behind now must not refuse what it claims for this very request.
        return bool(self.refused) and is_too_far_ahead(number, max(now_ms, self.min_epoch))


_decoder = msgspec.json.Decoder(ResyncRequest)


def encode_resync(request: ResyncRequest) -> bytes:
    """Encode the value of the key."""
    return msgspec.json.encode(request)


def decode_resync(value: bytes) -> ResyncRequest:
    """Decode the value of the key.

    Raises:
        MalformedMessage: it is not a resync request.
    """
    try:
        return _decoder.decode(value)
    except DECODE_ERRORS as e:
        raise MalformedMessage(f"not a resync request: {e}") from e


async def read_resync(kv: KeyValue, cluster: str, resource: Resource) -> ResyncRequest | None:
    """Read the request for a resource; None if there is none, or it is malformed.

    Raises:
        BusError: it could not be read.
    """
    entry = await kv.get(kv_resync(cluster, resource.group, resource.plural))
    if entry is None:
        return None
    try:
        return decode_resync(entry.value)
    except MalformedMessage:
        return None


async def request_resync(
    bus: Bus, kv: KeyValue, cluster: str, resource: Resource, request: ResyncRequest
) -> None:
    """Ask the cluster's watchers to list a resource again, and wake them.

    Raises:
        BusError: the request may not have been written.
    """
    key = kv_resync(cluster, resource.group, resource.plural)
    await kv.put(key, encode_resync(request))
    await wake_watchers(bus, cluster)


async def wake_watchers(bus: Bus, cluster: str) -> None:
    """Make a cluster's watchers read their requests now.

    Raises:
        BusError: the message may be lost; the watchers then read their requests later.
    """
    await bus.publish(control_subject(cluster))


async def request_audit(bus: Bus, kv: KeyValue, cluster: str) -> str:
    """Ask the cluster's watchers to audit every resource now; returns the id of the request.

    Raises:
        BusError: the request may not have been written.
    """
    request = secrets.token_hex(8)
    await kv.put(kv_audit_request(cluster), request.encode())
    await wake_watchers(bus, cluster)
    return request


async def read_audit_request(kv: KeyValue, cluster: str) -> str:
    """Read the id of the last audit request; empty if there never was one.

    Raises:
        BusError: it could not be read.
    """
    entry = await kv.get(kv_audit_request(cluster))
    return entry.value.decode(errors="replace") if entry is not None else ""
