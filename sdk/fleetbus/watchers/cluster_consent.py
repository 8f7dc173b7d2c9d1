"""Consent to another cluster under the name of a known one (rule W13).

A watcher refuses a cluster with another UID, because everything of the old one would look deleted.
It goes on once an operator has consented to this UID in place of the old one, so a consent is
valid for that one change only. Only the hub can write it (rule S3).
"""

from __future__ import annotations

import msgspec

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.watchers.resync import wake_watchers
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import kv_accepted, kv_incarnation, kv_refused


class Consent(msgspec.Struct, frozen=True):
    """An operator's consent; the value of the key, as JSON."""

    uid: str
    """UID of kube-system of the accepted cluster."""
    replaces: str = ""
    """The UID that was on record when the operator consented; empty if none was."""


_incarnations = msgspec.json.Decoder(Incarnation)
_consents = msgspec.json.Decoder(Consent)


def parse_incarnation(value: bytes) -> Incarnation | None:
    """Decode an incarnation record; None if it is malformed."""
    try:
        return _incarnations.decode(value)
    except DECODE_ERRORS:
        return None


async def record_refusal(kv: KeyValue, cluster: str, uid: str) -> None:
    """Record the UID of the cluster that is refused, for the operator who may consent.

    Raises:
        BusError: it may not have been written.
    """
    if await read_refused(kv, cluster) != uid:
        await kv.put(kv_refused(cluster), uid.encode())


async def read_refused(kv: KeyValue, cluster: str) -> str:
    """Read the UID of kube-system of the refused cluster; empty if none is refused.

    Raises:
        BusError: it could not be read.
    """
    entry = await kv.get(kv_refused(cluster))
    return entry.value.decode(errors="replace") if entry is not None else ""


async def consent(bus: Bus, kv: KeyValue, cluster: str, uid: str) -> None:
    """Accept the cluster with this UID of kube-system under the name of a known cluster.

    Consent to another UID than that of the cluster that answers changes nothing.

    Raises:
        BusError: it may not have been written.
    """
    entry = await kv.get(kv_incarnation(cluster))
    record = parse_incarnation(entry.value) if entry is not None else None
    accepted = Consent(uid, record.uid if record is not None else "")
    await kv.put(kv_accepted(cluster), msgspec.json.encode(accepted))
    await wake_watchers(bus, cluster)


async def has_consent(kv: KeyValue, cluster: str, uid: str, *, replaces: str) -> bool:
    """Whether an operator consented to this UID in place of that one.

    Raises:
        BusError: it could not be read.
    """
    return await read_consent(kv, cluster) == Consent(uid, replaces)


async def read_consent(kv: KeyValue, cluster: str) -> Consent | None:
    """Read the last consent; None if there is none, or it is malformed.

    Raises:
        BusError: it could not be read.
    """
    entry = await kv.get(kv_accepted(cluster))
    try:
        return _consents.decode(entry.value) if entry is not None else None
    except DECODE_ERRORS:
        return None


async def clear_refusal(kv: KeyValue, cluster: str) -> None:
    """Delete the record of a refused cluster.

    Raises:
        BusError: it may still exist.
    """
    await kv.delete(kv_refused(cluster))
