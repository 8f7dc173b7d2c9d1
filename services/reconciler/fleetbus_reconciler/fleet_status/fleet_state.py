"""Keeps the records of clusters and resources in the snapshot, for its readers.

Every write is computed from what the store holds, and only made if the store still holds it
(`SnapshotWriter.update_records`), so that several projectors may do it, and none can call complete
what an emptied store has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.audit import Audit
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import (
    ClusterRecord,
    ResourceRecord,
    ResourceState,
    ScopeRecord,
)
from fleetbus.snapshot.update_records import Records
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_proto.events import AuditPage, EpochEnd, Heartbeat, ResourceStatus
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.cluster_records import (
    Scope,
    is_locked_out,
    is_outdated,
    mark_stale,
    member_record,
    oldest_report,
    suspend,
    suspend_cluster,
    update_cluster,
    update_resources,
)
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()


class FleetState:
    """Writes the records, and requests the lists that the snapshot turns out to lack.

    Args:
        clusters: the registry: who is in the fleet.
        reader: the snapshot.
        writer: the snapshot.
        resyncs: requests lists.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        resyncs: ResyncRequests,
    ) -> None:
        self._clusters = clusters
        self._reader = reader
        self._writer = writer
        self._keys = writer.keys
        self._resyncs = resyncs
        self._converging = asyncio.Lock()
        # Cluster → scope → why it needs a person's attention; no heartbeat knows of that.
        self._degraded: dict[str, dict[Scope, str]] = {}
        # Clusters whose lists went with the store, until they are requested again.
        self._lost: set[str] = set()
        # Since when every shown scope of a cluster had been reported when they were last read.
        self._reported_since: dict[str, datetime] = {}

    # --- members ------------------------------------------------------------------------------

    async def converge(self) -> AbstractSet[str]:
        """Make the fleet in the store the fleet of the registry (rule P1).

        Nothing is dropped before every provider has answered.

        Returns:
            The clusters that left.
        """
        async with self._converging:
            fleet = await self._reader.available_clusters()
            records = {record.name: record for record in fleet.records}
            infos = {info.name: info for info in self._clusters.all()}
            changed = [info for info in infos.values() if _differs(info, records.get(info.name))]
            # A cluster whose shard is away is written when that is back.
            await for_each((info for info in changed if not fleet.is_away(info.name)), self._put)
            if not self._clusters.is_known:
                return frozenset()
            gone = records.keys() - infos.keys()
            for name in gone:
                log.info("cluster_removed", cluster=name)
                self._forget(name)
                await self._writer.removal.drop_cluster(name)
            return gone

    async def _put(self, info: ClusterInfo) -> None:
        def change(records: Records) -> Records:
            resources = suspend(records.resources) if info.suspended else records.resources
            return Records(member_record(info, records.cluster), resources)

        if not await self._writer.update_records(info.name, change):
            log.info("cluster_added", cluster=info.name)
            self._forget(info.name)  # it is a new member: what was requested before it left is void
            await self._writer.put_cluster(info.name, member_record(info, None))
            await self._resyncs.wake(info.name)

    def _forget(self, cluster: str) -> None:
        self._lost.discard(cluster)
        self._degraded.pop(cluster, None)
        self._reported_since.pop(cluster, None)
        self._resyncs.forget_cluster(cluster)

    def _is_suspended(self, cluster: str) -> bool:
        info = self._clusters.get(cluster)
        return info is not None and info.suspended

    async def rebuild(self, shards: AbstractSet[int]) -> None:
        """Begin a new generation of shards that were emptied (rules P13, P14).

        Which lists they lack follows from the next heartbeat of each cluster; joining requests
        them.
        """
        for info in self._clusters.all():
            if self._keys.shard_of(info.name) in shards:
                self._forget(info.name)
        await self._writer.ensure_generation()
        await self.converge()
        names = (info.name for info in self._clusters.all())
        self._lost |= {name for name in names if self._keys.shard_of(name) in shards}

    # --- heartbeats ---------------------------------------------------------------------------

    async def apply_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write what a watcher reports of its cluster; request the lists that the store lacks.

        Raises:
            StoreEmpty: the store was emptied.
        """
        cluster = heartbeat.cluster
        if self._clusters.is_known and self._clusters.get(cluster) is None:
            return  # not in the fleet: nothing of it is kept (rule P1)
        unlisted: list[ResourceStatus] = []
        is_shut_out = False

        def change(records: Records) -> Records:
            nonlocal is_shut_out
            unlisted.clear()  # called again if another projector wrote meanwhile
            is_shut_out = is_locked_out(heartbeat, records.cluster)
            if is_outdated(heartbeat, records.cluster):
                return records
            changed = update_cluster(heartbeat, records.cluster)
            if self._is_suspended(cluster):
                return Records(suspend_cluster(changed), suspend(records.resources))
            degraded = self._degraded.get(cluster, {})
            resources = update_resources(heartbeat, records.cluster, records.resources, degraded)
            unlisted.extend(_unlisted(heartbeat, resources))
            return Records(changed, resources)

        if not await self._writer.update_records(cluster, change):
            return
        if is_shut_out and heartbeat.resources:
            # One request is enough: it names the number to go beyond.
            reason = "its incarnation number is lower than one that was seen"
            resource = resource_of(heartbeat.resources[0])
            await self._resyncs.request_or_defer(cluster, resource, reason)
        await self._request_lists(cluster, unlisted)

    async def _request_lists(self, cluster: str, unlisted: list[ResourceStatus]) -> None:
        is_lost = cluster in self._lost
        listed = await self._listed(cluster) if unlisted else frozenset[Scope]()
        for status in unlisted:
            if (status.resource_key, status.scope) in listed:
                continue
            # Watching: it has listed once, but this store does not hold that list. After a loss
            # also the beginning of a list that is under way is not there.
            if status.state == "watching" or (is_lost and status.state == "listing"):
                reason = "the snapshot holds no complete list"
                await self._resyncs.request_or_defer(cluster, resource_of(status), reason)
        self._lost.discard(cluster)

    async def _listed(self, cluster: str) -> AbstractSet[Scope]:
        """The scopes of which the store holds a complete list, swept or waiting for its sweep.

        A heartbeat follows the end of an epoch closely, and a sweep takes its time.
        """
        pending = {
            (epoch.resource_key, epoch.scope)
            for epoch in await self._writer.sweeps.find_pending(cluster)
        }
        # Read second: it has what was swept meanwhile.
        return pending | {
            (record.key, name)
            for record in await self._reader.resources(cluster)
            for name, scope in record.scopes.items()
            if scope.epoch
        }

    # --- what the projector finds out -----------------------------------------------------------

    async def mark_synced(self, completed: CompletedEpoch) -> None:
        """Record that a complete list is in the snapshot and its deletions are on the bus.

        Nothing is written if the store does not hold that list any more (rule P14).
        """
        cluster, key, name = completed.cluster, completed.resource_key, completed.scope
        self._degraded.get(cluster, {}).pop((key, name), None)

        def change(records: Records) -> Records:
            record = records.resources.get(key) or ResourceRecord(
                group=completed.group,
                version=completed.version,
                plural=completed.resource,
                kind=completed.kind,
            )
            scope = record.scopes.get(name) or ScopeRecord()
            listed = msgspec.structs.replace(
                scope,
                state=ResourceState.SYNCED,
                reason="",
                epoch=f"{completed.rank.resource_version} {completed.rank.id}",
                last_received=scope.last_received or utc_now(),
                reported_at=scope.reported_at or utc_now(),
            )
            changed = {key: record.with_scopes({**record.scopes, name: listed})}
            is_suspended = self._is_suspended(cluster)
            return records._replace(resources=suspend(changed) if is_suspended else changed)

        await self._writer.update_records(cluster, change, completed=completed)

    async def mark_degraded(self, listed: CompletedEpoch | Audit, reason: str) -> None:
        """Record that a scope needs a person's attention; it is served all the same.

        It stays so until an epoch of the same scope is complete and swept.
        """
        key, name = listed.resource_key, listed.scope
        self._degraded.setdefault(listed.cluster, {})[key, name] = reason

        def change(records: Records) -> Records:
            record = records.resources.get(key)
            scope = record.scopes.get(name) if record is not None else None
            if record is None or scope is None or not scope.epoch:
                return records
            scope = msgspec.structs.replace(scope, state=ResourceState.DEGRADED, reason=reason)
            return records._replace(
                resources={key: record.with_scopes({**record.scopes, name: scope})}
            )

        await self._writer.update_records(listed.cluster, change)

    async def mark_incomplete(self, shard: int, reason: str) -> None:
        """Take back every complete list: nobody knows which writes the shard lost (rule P14).

        Raises:
            StoreEmpty: the store was emptied.
        """

        def doubt(scope: ScopeRecord) -> ScopeRecord:
            state = ResourceState.LISTING if scope.epoch else scope.state
            return msgspec.structs.replace(scope, state=state, reason=reason, epoch="")

        def change(records: Records) -> Records:
            doubted = {
                key: record.with_scopes({name: doubt(s) for name, s in record.scopes.items()})
                for key, record in records.resources.items()
                if record.scopes
            }
            return records._replace(resources=doubted)

        async def update(cluster: ClusterRecord) -> None:
            if self._keys.shard_of(cluster.name) == shard:
                await self._writer.update_records(cluster.name, change)

        await for_each((await self._reader.available_clusters()).records, update)

    async def forget_scope(self, cluster: str, resource: str, scope: str) -> None:
        """Forget a scope that is not watched any more, and with its last scope the resource.

        Else it would count as complete without rows (rules P6, P14).

        Raises:
            StoreEmpty: the store was emptied.
        """
        self._degraded.get(cluster, {}).pop((resource, scope), None)

        def change(records: Records) -> Records:
            record = records.resources.get(resource)
            if record is None or scope not in record.scopes:
                return records
            left = {name: state for name, state in record.scopes.items() if name != scope}
            if not left:
                return records._replace(resources={}, removed={resource})
            return records._replace(resources={resource: record.with_scopes(left)})

        await self._writer.update_records(cluster, change)

    async def mark_stale(self, after: timedelta) -> None:
        """Mark as stale what no heartbeat reports any more; the next one undoes it (rule P17)."""
        now = datetime.now(UTC)
        limit = now - after
        reason = f"no heartbeat has reported it for {after.total_seconds():.0f} s"

        def change(records: Records) -> Records:
            return records._replace(resources=mark_stale(records.resources, limit, reason))

        async def update(cluster: ClusterRecord) -> None:
            if self._reported_since.get(cluster.name, limit) > limit:
                return  # reports only become younger: nothing can be silent for so long yet
            resources = await self._reader.resources(cluster.name)
            oldest = min(filter(None, map(oldest_report, resources)), default=now)
            self._reported_since[cluster.name] = min(oldest, now)
            if oldest < limit:
                await self._writer.update_records(cluster.name, change)

        await for_each((await self._reader.available_clusters()).records, update)


def resource_of(source: CompletedEpoch | EpochEnd | AuditPage | ResourceStatus) -> Resource:
    """The resource that something is about."""
    return Resource(source.group, source.version, source.resource)


def _differs(info: ClusterInfo, record: ClusterRecord | None) -> bool:
    return record is None or member_record(info, record) != record


def _unlisted(heartbeat: Heartbeat, records: Mapping[str, ResourceRecord]) -> list[ResourceStatus]:
    return [
        status
        for status in heartbeat.resources
        if not records[status.resource_key].scopes[status.scope].epoch
    ]
