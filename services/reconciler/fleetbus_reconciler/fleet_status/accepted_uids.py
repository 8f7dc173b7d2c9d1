"""Which UID of kube-system is accepted for each cluster: the hub decides, no watcher (rule W13).

A watcher writes its heartbeats and the keys of its own cluster. If its word changed the accepted
UID, one cluster could take the place of another. So the UID is kept where a watcher may only read,
and in the record of the cluster, each restored from the other when it is lost. A watcher's word
counts for a cluster of which nothing is known, and for the UID to which somebody consented.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import UNREADABLE, Entry, KeyValue
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.amend import Records
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.watchers.cluster_consent import read_consent
from fleetbus_proto.events import AuditPage, EpochEnd, Heartbeat, Incarnation
from fleetbus_proto.keys import KV_IDENTITY, kv_accepted, kv_identity

log = structlog.get_logger()


class Identity(msgspec.Struct, frozen=True):
    """The value of the key, as JSON."""

    uid: str
    """Of kube-system."""
    since: int
    """When it was accepted, in ms."""
    number: int = 0
    """The first incarnation number under which it was heard; messages below it are history."""
    verified: bool = False
    """Whether the hub has read it itself, or somebody consented; else a watcher has told it."""


_identities: Final = msgspec.json.Decoder(Identity)


class Identities:
    """Keeps the accepted UIDs.

    Args:
        bus: to read all of them.
        kv: the bucket.
        reader: the snapshot.
        writer: the snapshot.
    """

    def __init__(
        self, *, bus: Bus, kv: KeyValue, reader: SnapshotReader, writer: SnapshotWriter
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._reader = reader
        self._writer = writer
        self._told = LogOnce()

    async def admit(self, message: Heartbeat | EpochEnd | AuditPage) -> str:
        """Why a message is refused, if it tells of another cluster than the accepted one; else ''.

        Raises:
            StoreEmpty: the store was emptied.
        """
        told, record = message.incarnation, await self._reader.cluster(message.cluster)
        if record is None or told.uid in ("", record.uid) or told.number < record.incarnation:
            return ""  # not in the fleet; as it was; or history, which changes nothing (P2)
        try:
            is_admitted = await self._judge(record, told)
        except BusError as e:
            log.warning("accepted_uid_not_read", cluster=record.name, error=str(e))
            return f"the accepted UID cannot be read: {e}" if record.uid else ""
        if is_admitted:
            return ""
        if self._told.should_log(key=record.name):
            at = utc_now()
            await self._writer.amend(record.name, lambda held: _with_refused(held, told.uid, at))
        return f"its kube-system has UID {told.uid!r}, which nobody accepted for {record.name!r}"

    async def verify(self, cluster: str, uid: str) -> bool:
        """Accept the UID that the hub has read itself; False if that takes somebody's consent.

        Raises:
            BusError, RedisError, StoreEmpty: it may not have been accepted.
        """
        while True:
            entry = await self._kv.get(kv_identity(cluster))
            held = _parse(entry) or _of(await self._reader.cluster(cluster))
            if held is not None and held.verified and held.uid != uid:
                return False
            if held is None or held.uid != uid:
                held = Identity(uid, now_ms())
            if await self._accept(cluster, msgspec.structs.replace(held, verified=True), entry):
                return True

    async def forget(self, cluster: str) -> None:
        """A cluster left: whoever joins under its name is another one.

        Raises:
            BusError: it may still be there.
        """
        await self._kv.delete(kv_accepted(cluster))
        await self._kv.delete(kv_identity(cluster))

    async def names(self) -> set[str]:
        """The clusters of which a UID is kept.

        Raises:
            BusError: nothing is known.
        """
        return {key.split(".")[1] for key in await scan_keys(self._bus, KV_IDENTITY)}

    async def restore(self) -> None:
        """Bucket or store was lost: write each from the other.

        Raises:
            BusError, RedisError, StoreEmpty: not everything was written; to be repeated.
        """
        found = await scan_keys(self._bus, KV_IDENTITY)
        for record in await self._reader.clusters():
            entry = found.get(kv_identity(record.name))
            held = _parse(entry) or _of(record)
            if held is not None and (entry is None or not record.uid):
                await self._accept(record.name, held, entry)

    async def _judge(self, record: ClusterRecord, told: Incarnation) -> bool:
        while True:
            entry = await self._kv.get(kv_identity(record.name))
            held = _parse(entry) or _of(record)
            if held is None:
                held = Identity(told.uid, now_ms(), told.number)
            elif held.uid == told.uid:
                held = msgspec.structs.replace(held, number=held.number or told.number)
            elif told.number < held.number:
                return True
            elif await self._is_consented(record.name, told.uid):
                log.info("identity_changed", cluster=record.name, uid=told.uid, before=held.uid)
                held = Identity(told.uid, now_ms(), told.number, verified=True)
            else:
                return False
            if await self._accept(record.name, held, entry):
                return True

    async def _is_consented(self, cluster: str, uid: str) -> bool:
        consent = await read_consent(self._kv, cluster)
        return consent is not None and consent.uid == uid

    async def _accept(self, cluster: str, identity: Identity, found: Entry | None) -> bool:
        """Whether it is written; False if somebody else has written meanwhile."""
        if identity != _parse(found):
            value, revision = msgspec.json.encode(identity), found.revision if found else 0
            if await self._kv.update(kv_identity(cluster), value, revision) is None:
                return False
        await self._writer.amend(cluster, lambda held: _with(held, identity))
        return True


def _with(held: Records, identity: Identity) -> Records:
    is_new = held.cluster.uid != identity.uid
    accepted = msgspec.structs.replace(
        held.cluster,
        uid=identity.uid,
        uid_since=identity.since,
        uid_verified=identity.verified,
        refused_uid="" if is_new else held.cluster.refused_uid,
        refused_at="" if is_new else held.cluster.refused_at,
    )
    return held._replace(cluster=accepted)


def _with_refused(held: Records, uid: str, at: str) -> Records:
    told_of = msgspec.structs.replace(held.cluster, refused_uid=uid, refused_at=at)
    return held._replace(cluster=told_of)


def _of(record: ClusterRecord | None) -> Identity | None:
    if record is None or not record.uid:
        return None
    return Identity(record.uid, record.uid_since, verified=record.uid_verified)


def _parse(entry: Entry | None) -> Identity | None:
    try:
        return _identities.decode(entry.value) if entry is not None else None
    except UNREADABLE:
        return None
