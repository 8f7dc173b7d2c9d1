"""What heartbeats and epochs tell about clusters, written for the readers of the snapshot."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from fleetbus.bus import Bus, KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.kube_config import server_of
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.read import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.wanted import Wanted, wake_watchers, want_epoch
from fleetbus_proto.events import EpochEnd, Heartbeat, ResourceStatus
from fleetbus_proto.resources import Resource

log = structlog.get_logger()

_ASK_AGAIN_AFTER: Final = 30.0


class FleetState:
    """Keeps the records of clusters and resources in the snapshot, and asks for missing epochs.

    Every write is computed from what the store holds, so that several projectors may do it.

    Args:
        clusters: the registry: who is in the fleet.
        reader: the snapshot.
        writer: the snapshot.
        bus: to wake watchers.
        kv: where wishes for relists are kept.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        bus: Bus,
        kv: KeyValue,
    ) -> None:
        self._clusters = clusters
        self._reader = reader
        self._writer = writer
        self._bus = bus
        self._kv = kv
        self._asked: dict[tuple[str, str], float] = {}

    # --- members ------------------------------------------------------------------------------

    async def converge(self) -> None:
        """Make the fleet in the store the fleet of the registry (rule P1).

        Nothing is dropped before every provider has answered.
        """
        held = {record.name: record for record in await self._reader.clusters()}
        for info in self._clusters.all():
            wanted = _cluster_record(info, held.get(info.name))
            if wanted != held.get(info.name):
                await self._writer.put_cluster(info.name, wanted)
            if info.name not in held:
                log.info("cluster_added", cluster=info.name)
                await self._wake(info.name)
        if not self._clusters.is_known:
            return
        for name in held.keys() - {info.name for info in self._clusters.all()}:
            log.info("cluster_removed", cluster=name)
            await self._writer.drop_cluster(name)

    async def is_store_empty(self) -> bool:
        """Whether the store has lost its content (rule P13)."""
        return await self._reader.generation() is None

    # --- what is heard ------------------------------------------------------------------------

    async def hear(self, heartbeat: Heartbeat) -> None:
        """Write what a watcher told of its cluster; ask for epochs that the store lacks."""
        record = await self._reader.cluster(heartbeat.cluster)
        if record is None:
            return  # not in the fleet: nothing of it is kept (rule P1)
        heard = msgspec.structs.replace(
            record,
            connected=heartbeat.connected,
            reason=heartbeat.reason,
            message=heartbeat.message,
            server_version=heartbeat.server_version or record.server_version,
            incarnation=heartbeat.incarnation.number,
            last_heard=heartbeat.observed_at,
        )
        if heard != record:
            await self._writer.put_cluster(heartbeat.cluster, heard)
        held = {r.key: r for r in await self._reader.resources(heartbeat.cluster)}
        for status in heartbeat.resources:
            found = held.get(f"{status.group}/{status.resource}")
            await self._hear_resource(heartbeat.cluster, status, found)

    async def _hear_resource(
        self, cluster: str, status: ResourceStatus, held: ResourceRecord | None
    ) -> None:
        epoch = held.epoch if held is not None else ""
        record = ResourceRecord(
            group=status.group,
            version=status.version,
            plural=status.resource,
            kind=status.kind,
            namespaced=status.namespaced,
            scope=status.scope,
            state=_state(status, is_listed=bool(epoch)),
            reason=status.message or status.reason,
            last_heard=status.last_heard or (held.last_heard if held else ""),
            resource_version=status.resource_version,
            epoch=epoch,
        )
        if record != held:
            await self._writer.put_resource_state(cluster, record)
        if status.state == "watching" and not epoch:
            # The watcher has listed it once, but this store does not hold that list.
            resource = Resource(status.group, status.version, status.resource)
            await self.want(cluster, resource, "the snapshot holds no complete list")

    async def complete(self, completed: CompletedEpoch) -> None:
        """A complete list is in the snapshot and its deletions are on the bus."""
        held = {r.key: r for r in await self._reader.resources(completed.cluster)}
        found = held.get(completed.resource_key) or ResourceRecord(
            group=completed.group,
            version=completed.version,
            plural=completed.resource,
            kind=completed.kind,
            scope=completed.scope,
        )
        record = msgspec.structs.replace(
            found,
            state=ResourceState.SYNCED,
            reason="",
            epoch=f"{completed.rank.resource_version} {completed.rank.id}",
            last_heard=found.last_heard or _now(),
        )
        await self._writer.put_resource_state(completed.cluster, record)

    async def degrade(self, completed: CompletedEpoch, reason: str) -> None:
        """Something about this resource needs a person's eye; it is served all the same."""
        held = {r.key: r for r in await self._reader.resources(completed.cluster)}
        if found := held.get(completed.resource_key):
            record = msgspec.structs.replace(found, reason=reason)
            await self._writer.put_resource_state(completed.cluster, record)

    async def mark_stale(self, after: timedelta) -> None:
        """Say stale of what has not been heard of; a heartbeat takes it back (rule P17)."""
        limit = datetime.now(UTC) - after
        for cluster in await self._reader.clusters():
            for record in await self._reader.resources(cluster.name):
                if record.state is ResourceState.SYNCED and _heard(record) < limit:
                    reason = f"not heard of for {after.total_seconds():.0f} s"
                    stale = msgspec.structs.replace(
                        record, state=ResourceState.STALE, reason=reason
                    )
                    await self._writer.put_resource_state(cluster.name, stale)

    # --- wishes -------------------------------------------------------------------------------

    async def want(
        self, cluster: str, resource: Resource, reason: str, *, last_epoch: int = 0
    ) -> None:
        """Ask for a relist, at most every 30 s for one resource (rule W20)."""
        key = (cluster, resource.key)
        now = time.monotonic()
        if now - self._asked.get(key, float("-inf")) < _ASK_AGAIN_AFTER:
            return
        self._asked[key] = now
        record = await self._reader.cluster(cluster)
        wanted = Wanted(
            min_epoch=max(int(time.time() * 1000), last_epoch + 1),
            reason=reason,
            incarnation=record.incarnation if record else 0,
            epoch=last_epoch,
        )
        log.info("epoch_wanted", cluster=cluster, resource=str(resource), reason=reason)
        await want_epoch(self._bus, self._kv, cluster, resource, wanted)

    async def forget_asked(self, completed: CompletedEpoch) -> None:
        """A list came: the next wish for this resource need not wait."""
        self._asked.pop((completed.cluster, completed.resource_key), None)

    async def _wake(self, cluster: str) -> None:
        try:
            await wake_watchers(self._bus, cluster)
        except BusError as e:
            log.warning("wake_failed", cluster=cluster, error=str(e))


def resource_of(source: CompletedEpoch | EpochEnd) -> Resource:
    """The resource of an epoch."""
    return Resource(source.group, source.version, source.resource)


def _cluster_record(info: ClusterInfo, held: ClusterRecord | None) -> ClusterRecord:
    record = held or ClusterRecord(name=info.name, joined_at=_now())
    host = server_of(info.config) if info.config is not None else ""
    changed = msgspec.structs.replace(
        record, labels=dict(info.labels), hub=info.hub, provider=info.provider, host=host
    )
    if info.problem:
        return msgspec.structs.replace(
            changed, connected=False, reason="Unusable", message=info.problem
        )
    return changed


def _state(status: ResourceStatus, *, is_listed: bool) -> ResourceState:
    if status.state == "failing":
        return ResourceState.STALE if is_listed else ResourceState.UNKNOWN
    if is_listed:
        return ResourceState.SYNCED
    return ResourceState.LISTING


def _heard(record: ResourceRecord) -> datetime:
    try:
        return datetime.fromisoformat(record.last_heard)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
