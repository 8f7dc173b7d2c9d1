"""Another cluster answers under the name of one that is known (rule W13).

The watcher stops and refuses it, because everything of the old one would look deleted. It goes on
when somebody has consented to exactly that cluster in the place of exactly the old one; so a
consent is used up by the change that it was for. Only the hub can write it (rule S3).
"""

from __future__ import annotations

import msgspec

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import UNREADABLE, KeyValue
from fleetbus.watchers.resync import wake_watchers
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import kv_accepted, kv_incarnation, kv_refused


class Consent(msgspec.Struct, frozen=True):
    """The value of the key, as JSON."""

    uid: str
    """Of kube-system of the cluster that may be the one of that name."""
    replaces: str = ""
    """That of the one that it was when somebody consented; empty if nobody knew."""


_incarnations = msgspec.json.Decoder(Incarnation)
_consents = msgspec.json.Decoder(Consent)


def parse_incarnation(value: bytes) -> Incarnation | None:
    """The record of who a cluster is; None if that is unreadable."""
    try:
        return _incarnations.decode(value)
    except UNREADABLE:
        return None


async def refuse(kv: KeyValue, cluster: str, uid: str) -> None:
    """Tell which cluster answers, for whoever consents.

    Raises:
        BusError: it may not have been written.
    """
    if await read_refused(kv, cluster) != uid:
        await kv.put(kv_refused(cluster), uid.encode())


async def read_refused(kv: KeyValue, cluster: str) -> str:
    """The UID of kube-system of the cluster that is refused; empty if none is.

    Raises:
        BusError: nothing is known.
    """
    entry = await kv.get(kv_refused(cluster))
    return entry.value.decode(errors="replace") if entry is not None else ""


async def consent(bus: Bus, kv: KeyValue, cluster: str, uid: str) -> None:
    """Let the watchers take the cluster with this UID of kube-system for the one of that name.

    Consent to another UID than that of the cluster that answers changes nothing.

    Raises:
        BusError: it may not have been written.
    """
    entry = await kv.get(kv_incarnation(cluster))
    record = parse_incarnation(entry.value) if entry is not None else None
    given = Consent(uid, record.uid if record is not None else "")
    await kv.put(kv_accepted(cluster), msgspec.json.encode(given))
    await wake_watchers(bus, cluster)


async def has_consent(kv: KeyValue, cluster: str, uid: str, *, replaces: str) -> bool:
    """Whether somebody consented to this cluster in the place of that one.

    Raises:
        BusError: nothing is known.
    """
    return await read_consent(kv, cluster) == Consent(uid, replaces)


async def read_consent(kv: KeyValue, cluster: str) -> Consent | None:
    """The last consent; None if there is none that can be read.

    Raises:
        BusError: nothing is known.
    """
    entry = await kv.get(kv_accepted(cluster))
    try:
        return _consents.decode(entry.value) if entry is not None else None
    except UNREADABLE:
        return None


async def settle(kv: KeyValue, cluster: str) -> None:
    """Nobody is refused any more.

    Raises:
        BusError: the key may still be there.
    """
    await kv.delete(kv_refused(cluster))
