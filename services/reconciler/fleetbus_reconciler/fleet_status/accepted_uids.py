"""Keeps the UID of kube-system that is accepted for each cluster; the hub decides (rule W13).

A watcher writes its heartbeats and the keys of its own cluster. If these changed the accepted UID,
one cluster could take the place of another. So the UID is kept in a key that watchers may only
read, and in the record of the cluster; each is restored from the other when it is lost. What a
watcher reports counts only for a cluster of which nothing is known, and for the UID to which
somebody consented.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import DECODE_ERRORS, Entry, KeyValue
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.update_records import Records
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.watchers.cluster_consent import read_consent
from fleetbus_proto.events import AuditPage, EpochEnd, Heartbeat, Incarnation
from fleetbus_proto.keys import KV_IDENTITY, kv_accepted, kv_cluster, kv_identity
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()


class AcceptedUid(msgspec.Struct, frozen=True):
    """The value of the key, as JSON."""

    uid: str
    """The UID of the namespace kube-system."""
    since: int
    """When it was accepted, in ms."""
    number: int = 0
    """The first incarnation number under which it was reported; messages below it are history."""
    verified: bool = False
    """Whether the hub has read it itself, or somebody consented; else a watcher reported it."""


_decoder: Final = msgspec.json.Decoder(AcceptedUid)


class AcceptedUids:
    """Admits messages of accepted clusters, and restores the UIDs when they are lost.

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
        self._refusals = LogOnce()

    async def admit(self, message: Heartbeat | EpochEnd | AuditPage) -> str:
        """Why a message is refused, because it is from another cluster than the accepted one.

        Returns:
            The reason; empty if the message is admitted.

        Raises:
            StoreEmpty: the store was emptied.
        """
        reported, record = message.incarnation, await self._reader.cluster(message.cluster)
        if record is None or reported.uid in ("", record.uid):
            return ""  # not in the fleet, or as it was
        if reported.number < record.incarnation:
            return ""  # history, which changes nothing (rule P2)
        try:
            is_admitted = await self._is_acceptable(record, reported)
        except BusError as e:
            log.warning("accepted_uid_not_read", cluster=record.name, error=str(e))
            return f"the accepted UID cannot be read: {e}" if record.uid else ""
        if is_admitted:
            return ""
        if self._refusals.should_log(key=record.name):
            uid, at = reported.uid, utc_now()
            await self._writer.update_records(
                record.name, lambda records: _with_refused(records, uid, at)
            )
        return (
            f"its kube-system has UID {reported.uid!r}, which nobody accepted for {record.name!r}"
        )

    async def verify(self, cluster: str, uid: str) -> bool:
        """Accept the UID that the hub has read itself; False if that needs somebody's consent.

        Raises:
            BusError, RedisError, StoreEmpty: it may not have been accepted.
        """
        while True:
            entry = await self._kv.get(kv_identity(cluster))
            stored = _parse(entry) or _of(await self._reader.cluster(cluster))
            if stored is not None and stored.verified and stored.uid != uid:
                return False
            if stored is None or stored.uid != uid:
                stored = AcceptedUid(uid, now_ms())
            if await self._accept(cluster, msgspec.structs.replace(stored, verified=True), entry):
                return True

    async def forget(self, cluster: str) -> None:
        """Forget the UID of a cluster that left: whoever joins under its name is another one.

        Raises:
            BusError: the UID may still be there.
        """
        await self._kv.delete(kv_accepted(cluster))
        await self._kv.delete(kv_identity(cluster))

    async def clusters(self) -> set[str]:
        """The clusters whose UID is in the bucket.

        Raises:
            BusError: nothing is known.
        """
        return {kv_cluster(key) for key in await scan_keys(self._bus, KV_IDENTITY)}

    async def restore(self) -> None:
        """Restore the bucket from the store, and the store from the bucket.

        Raises:
            BusError, RedisError, StoreEmpty: not everything was restored; to be repeated.
        """
        entries = await scan_keys(self._bus, KV_IDENTITY)

        async def restore(record: ClusterRecord) -> None:
            entry = entries.get(kv_identity(record.name))
            stored = _parse(entry) or _of(record)
            if stored is not None and (entry is None or not record.uid):
                await self._accept(record.name, stored, entry)

        await for_each((await self._reader.available_clusters()).records, restore)

    async def _is_acceptable(self, record: ClusterRecord, reported: Incarnation) -> bool:
        uid, number = reported.uid, reported.number
        while True:
            entry = await self._kv.get(kv_identity(record.name))
            stored = _parse(entry) or _of(record)
            if stored is None:
                stored = AcceptedUid(uid, now_ms(), number)
            elif stored.uid == uid:
                stored = msgspec.structs.replace(stored, number=stored.number or number)
            elif number < stored.number:
                return True
            elif await self._is_consented(record.name, uid):
                log.info("accepted_uid_changed", cluster=record.name, uid=uid, before=stored.uid)
                stored = AcceptedUid(uid, now_ms(), number, verified=True)
            else:
                return False
            if await self._accept(record.name, stored, entry):
                return True

    async def _is_consented(self, cluster: str, uid: str) -> bool:
        consent = await read_consent(self._kv, cluster)
        return consent is not None and consent.uid == uid

    async def _accept(self, cluster: str, identity: AcceptedUid, entry: Entry | None) -> bool:
        """Whether it was written; False if somebody else wrote meanwhile."""
        if identity != _parse(entry):
            value, revision = msgspec.json.encode(identity), entry.revision if entry else 0
            if await self._kv.update(kv_identity(cluster), value, revision) is None:
                return False
        await self._writer.update_records(cluster, lambda records: _with(records, identity))
        return True


def _with(records: Records, identity: AcceptedUid) -> Records:
    is_new = records.cluster.uid != identity.uid
    accepted = msgspec.structs.replace(
        records.cluster,
        uid=identity.uid,
        uid_since=identity.since,
        uid_verified=identity.verified,
        refused_uid="" if is_new else records.cluster.refused_uid,
        refused_at="" if is_new else records.cluster.refused_at,
    )
    return records._replace(cluster=accepted)


def _with_refused(records: Records, uid: str, at: str) -> Records:
    refused = msgspec.structs.replace(records.cluster, refused_uid=uid, refused_at=at)
    return records._replace(cluster=refused)


def _of(record: ClusterRecord | None) -> AcceptedUid | None:
    if record is None or not record.uid:
        return None
    return AcceptedUid(record.uid, record.uid_since, verified=record.uid_verified)


def _parse(entry: Entry | None) -> AcceptedUid | None:
    try:
        return _decoder.decode(entry.value) if entry is not None else None
    except DECODE_ERRORS:
        return None
