"""What heartbeats and epochs tell about clusters, written for the readers of the snapshot.

Every write is computed from what the store holds, and only made if the store still holds it
(`SnapshotWriter.amend`), so that several projectors may do it, and none can call complete what an
emptied store has lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.snapshot.amend import Records
from fleetbus.snapshot.audit import Audit
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord, ResourceState, ScopeRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.watchers.resync import Wanted, read_wanted, wake_watchers, want_epoch
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.events import AuditPage, EpochEnd, Heartbeat, ResourceStatus
from fleetbus_proto.keys import kv_wanted
from fleetbus_proto.resources import Resource, is_resource_name
from fleetbus_reconciler.fleet_status.cluster_records import (
    cluster_record,
    has_silent,
    heard_cluster,
    is_outdated,
    is_silenced,
    stale,
    state_of,
    suspended,
    suspended_cluster,
)

log = structlog.get_logger()

_ASK_AGAIN_AFTER: Final = 30.0

_Scope = tuple[str, str]
"""The key of a resource, and the hash of a scope."""


class FleetState:
    """Keeps the records of clusters and resources in the snapshot, and asks for missing epochs.

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
        self._converging = asyncio.Lock()
        # When a wish was last written: (cluster, resource, epoch it must be newer than) → time.
        self._asked: dict[tuple[str, str, int], float] = {}
        # Why a scope needs a person's eye; a heartbeat knows nothing of it.
        self._degraded: dict[tuple[str, str, str], str] = {}
        # Wishes that could not be written when they came up, and why there are.
        self._unwritten: dict[tuple[str, Resource], str] = {}
        # Clusters whose lists went with the store, until their wishes are written.
        self._lost: set[str] = set()

    # --- members ------------------------------------------------------------------------------

    async def converge(self) -> AbstractSet[str]:
        """Make the fleet in the store the fleet of the registry (rule P1).

        Nothing is dropped before every provider has answered.

        Returns:
            The clusters that left.
        """
        async with self._converging:
            held = {record.name: record for record in await self._reader.clusters()}
            wanted = {info.name: info for info in self._clusters.all()}
            for info in wanted.values():
                record = held.get(info.name)
                if record is None or cluster_record(info, record) != record:
                    await self._put(info)
            if not self._clusters.is_known:
                return frozenset()
            gone = held.keys() - wanted.keys()
            for name in gone:
                log.info("cluster_removed", cluster=name)
                self._forget(name)
                await self._writer.drop_cluster(name)
            return gone

    async def _put(self, info: ClusterInfo) -> None:
        def change(held: Records) -> Records:
            resources = suspended(held.resources) if info.suspended else held.resources
            return Records(cluster_record(info, held.cluster), resources)

        if not await self._writer.amend(info.name, change):
            log.info("cluster_added", cluster=info.name)
            self._forget(info.name)  # it is told anew: what was asked before it left is void
            await self._writer.put_cluster(info.name, cluster_record(info, None))
            await self._wake(info.name)

    def _forget(self, cluster: str) -> None:
        self._lost.discard(cluster)
        for key in [key for key in self._asked if key[0] == cluster]:
            del self._asked[key]
        for key in [key for key in self._degraded if key[0] == cluster]:
            del self._degraded[key]
        for place in [place for place in self._unwritten if place[0] == cluster]:
            del self._unwritten[place]

    def _is_foreign(self, cluster: str) -> bool:
        """Whether the registry knows that a cluster is not in the fleet."""
        return self._clusters.is_known and self._clusters.get(cluster) is None

    def _is_suspended(self, cluster: str) -> bool:
        info = self._clusters.get(cluster)
        return info is not None and info.suspended

    async def is_store_empty(self) -> bool:
        """Whether the store has lost its content (rule P13)."""
        return await self._reader.generation() is None

    async def rebuild(self) -> None:
        """The store was emptied: a new generation, and epochs of everything (P13, P14).

        Which resources there are is in the next heartbeat of each cluster; joining wakes them.
        """
        self._asked.clear()
        self._degraded.clear()
        await self._writer.ensure_generation()
        await self.converge()
        self._lost = {info.name for info in self._clusters.all()}

    # --- what is heard ------------------------------------------------------------------------

    async def hear(self, heartbeat: Heartbeat) -> None:
        """Write what a watcher told of its cluster; ask for epochs that the store lacks.

        Raises:
            StoreEmpty: the store was emptied.
        """
        if self._is_foreign(heartbeat.cluster):
            return  # not in the fleet: nothing of it is kept (rule P1)
        lacking: list[ResourceStatus] = []
        silenced: list[ResourceStatus] = []

        def change(held: Records) -> Records:
            lacking.clear()
            silenced[:] = heartbeat.resources[:1] if is_silenced(heartbeat, held.cluster) else []
            if is_outdated(heartbeat, held.cluster):
                return held
            if self._is_suspended(heartbeat.cluster):
                return Records(
                    suspended_cluster(heard_cluster(heartbeat, held.cluster)),
                    suspended(held.resources),
                )
            records = self._heard_resources(heartbeat, held.resources)
            lacking.extend(
                status
                for status in heartbeat.resources
                if not records[status.resource_key].scopes[status.scope].epoch
            )
            return Records(heard_cluster(heartbeat, held.cluster), records)

        if not await self._writer.amend(heartbeat.cluster, change):
            return
        for status in silenced:  # one wish is enough: it tells the number to go beyond
            reason = "its incarnation number is lower than one that was seen"
            await self.want_soon(heartbeat.cluster, resource_of(status), reason)
        is_lost = heartbeat.cluster in self._lost
        listed = await self._listed(heartbeat.cluster) if lacking else frozenset[_Scope]()
        for status in lacking:
            if (status.resource_key, status.scope) in listed:
                continue
            # Watching: it has listed once, but this store does not hold that list. After a loss
            # also the beginning of a list that is under way is not there.
            if status.state == "watching" or (is_lost and status.state == "listing"):
                reason = "the snapshot holds no complete list"
                await self.want_soon(heartbeat.cluster, resource_of(status), reason)
        self._lost.discard(heartbeat.cluster)

    async def _listed(self, cluster: str) -> AbstractSet[_Scope]:
        """The scopes of which the store holds a complete list, swept or waiting for its sweep.

        A heartbeat follows the end of an epoch closely, and a sweep takes its time.
        """
        pending = {
            (epoch.resource_key, epoch.scope)
            for epoch in await self._writer.pending_sweeps(cluster)
        }
        # Read second: what was swept meanwhile is told here.
        return pending | {
            (record.key, name)
            for record in await self._reader.resources(cluster)
            for name, scope in record.scopes.items()
            if scope.epoch
        }

    def _heard_resources(
        self, heartbeat: Heartbeat, held: Mapping[str, ResourceRecord]
    ) -> dict[str, ResourceRecord]:
        """The resources that a heartbeat tells of; what another replica told of stays beside it."""
        records: dict[str, ResourceRecord] = {}
        for status in heartbeat.resources:
            key = status.resource_key
            before = records.get(key) or held.get(key)
            scopes = before.scopes if before is not None else {}
            heard = self._heard_scope(heartbeat, status, scopes.get(status.scope))
            told = ResourceRecord(
                group=status.group,
                version=status.version,
                plural=status.resource,
                kind=status.kind,
                namespaced=status.namespaced,
                is_declared=True,
            )
            records[key] = told.with_scopes({**scopes, status.scope: heard})
        return records

    def _heard_scope(
        self, heartbeat: Heartbeat, status: ResourceStatus, held: ScopeRecord | None
    ) -> ScopeRecord:
        held = held or ScopeRecord()
        state = state_of(status, is_listed=bool(held.epoch))
        reason = status.message or status.reason
        if state is ResourceState.STALE and not reason:
            reason = "its watch is not open"
        trouble = self._degraded.get((heartbeat.cluster, status.resource_key, status.scope))
        if trouble and state is ResourceState.SYNCED:
            state, reason = ResourceState.DEGRADED, trouble
        return ScopeRecord(
            namespace=status.namespace,
            state=state,
            reason=reason,
            last_heard=status.last_heard or held.last_heard,
            reported_at=heartbeat.observed_at,
            resource_version=status.resource_version,
            epoch=held.epoch,
        )

    async def complete(self, completed: CompletedEpoch) -> None:
        """A complete list is in the snapshot and its deletions are on the bus.

        Nothing is written if the store does not hold that list any more (rule P14).
        """
        self._degraded.pop((completed.cluster, completed.resource_key, completed.scope), None)

        def change(held: Records) -> Records:
            found = held.resources.get(completed.resource_key) or ResourceRecord(
                group=completed.group,
                version=completed.version,
                plural=completed.resource,
                kind=completed.kind,
            )
            scope = found.scopes.get(completed.scope) or ScopeRecord()
            listed = msgspec.structs.replace(
                scope,
                state=ResourceState.SYNCED,
                reason="",
                epoch=f"{completed.rank.resource_version} {completed.rank.id}",
                last_heard=scope.last_heard or utc_now(),
                reported_at=scope.reported_at or utc_now(),
            )
            record = found.with_scopes({**found.scopes, completed.scope: listed})
            changed = {record.key: record}
            is_suspended = self._is_suspended(completed.cluster)
            return held._replace(resources=suspended(changed) if is_suspended else changed)

        await self._writer.amend(completed.cluster, change, completed=completed)

    async def degrade(self, completed: CompletedEpoch | Audit, reason: str) -> None:
        """Something about this resource needs a person's eye; it is served all the same.

        It stays so until an epoch of the same scope is complete and swept.
        """
        key = completed.resource_key
        self._degraded[completed.cluster, key, completed.scope] = reason

        def change(held: Records) -> Records:
            found = held.resources.get(key)
            scope = found.scopes.get(completed.scope) if found is not None else None
            if found is None or scope is None or not scope.epoch:
                return held
            scope = msgspec.structs.replace(scope, state=ResourceState.DEGRADED, reason=reason)
            record = found.with_scopes({**found.scopes, completed.scope: scope})
            return held._replace(resources={key: record})

        await self._writer.amend(completed.cluster, change)

    async def doubt_all(self, reason: str) -> None:
        """Nothing counts as completely listed any more: the store has lost nobody knows what (P14).

        Raises:
            StoreEmpty: the store was emptied.
        """

        def doubt(scope: ScopeRecord) -> ScopeRecord:
            state = ResourceState.LISTING if scope.epoch else scope.state
            return msgspec.structs.replace(scope, state=state, reason=reason, epoch="")

        def change(held: Records) -> Records:
            doubted = {
                key: record.with_scopes({name: doubt(s) for name, s in record.scopes.items()})
                for key, record in held.resources.items()
                if record.scopes
            }
            return held._replace(resources=doubted)

        for cluster in await self._reader.clusters():
            await self._writer.amend(cluster.name, change)

    async def forget_scope(self, cluster: str, resource: str, scope: str) -> None:
        """A scope is not watched any more; with its last scope the resource is unknown (P6, P14).

        Raises:
            StoreEmpty: the store was emptied.
        """
        self._degraded.pop((cluster, resource, scope), None)

        def change(held: Records) -> Records:
            found = held.resources.get(resource)
            if found is None or scope not in found.scopes:
                return held
            left = {name: state for name, state in found.scopes.items() if name != scope}
            if not left:
                return held._replace(resources={}, removed={resource})
            return held._replace(resources={resource: found.with_scopes(left)})

        await self._writer.amend(cluster, change)

    async def mark_stale(self, after: timedelta) -> None:
        """Say stale of what no watcher speaks of; a heartbeat takes it back (rule P17)."""
        limit = datetime.now(UTC) - after
        reason = f"no watcher has spoken of it for {after.total_seconds():.0f} s"

        def change(held: Records) -> Records:
            return held._replace(resources=stale(held.resources, limit, reason))

        for cluster in await self._reader.clusters():
            resources = await self._reader.resources(cluster.name)
            if any(has_silent(record, limit) for record in resources):
                await self._writer.amend(cluster.name, change)

    # --- wishes -------------------------------------------------------------------------------

    async def want(
        self,
        cluster: str,
        resource: Resource,
        reason: str,
        *,
        newer_than: int = 0,
        audit: int = 0,
        new_history: bool = False,
        refused: int = 0,
    ) -> None:
        """Ask for a relist, at most every 30 s for one resource and purpose (rule W20).

        Args:
            cluster: whose.
            resource: of what.
            reason: for people.
            newer_than: any epoch after this one will do, so a wish that is still open is not
                renewed: its list may be under way and would start again. 0 asks for a list that
                starts from now.
            audit: the one that asks; nobody else's wish will do for it.
            new_history: of a new incarnation, and so with it lists of everything (W23).
            refused: the number for which something was refused, if that is why (B8).

        Raises:
            BusError: the wish may not have been written.
        """
        key = (cluster, resource.key, newer_than or -audit)
        now = time.monotonic()
        if now - self._asked.get(key, float("-inf")) < _ASK_AGAIN_AFTER:
            return
        if self._is_foreign(cluster):
            return
        if not is_resource_name(resource.group, resource.plural):
            # No API server has such a resource, and no key of the bucket can hold its name (B18).
            log.warning("wish_names_no_resource", cluster=cluster, resource=str(resource))
            return
        held = await read_wanted(self._kv, cluster, resource)
        if held is not None and is_too_far_ahead(held.min_epoch, now_ms()):
            held = None  # by a clock that was wrong: no consumer takes such an epoch (B8)
        if newer_than and held is not None and held.min_epoch > newer_than:
            await wake_watchers(self._bus, cluster)
        else:
            held = msgspec.structs.replace(held or Wanted(min_epoch=0), refused=refused)
            await self._write_wish(cluster, resource, reason, newer_than, held, int(new_history))
        # Only now: a wish that could not be written is tried again at the next occasion.
        self._asked = {k: at for k, at in self._asked.items() if now - at < _ASK_AGAIN_AFTER}
        self._asked[key] = now

    async def want_soon(
        self, cluster: str, resource: Resource, reason: str, *, refused: int = 0
    ) -> None:
        """As `want`, for the handling of messages: what cannot be written now is written later.

        Else a bucket that is away would stop the events of all clusters (rule B18).
        """
        try:
            await self.want(cluster, resource, reason, refused=refused)
        except BusError as e:
            log.warning("wish_not_written", cluster=cluster, error=str(e))
            self._unwritten[cluster, resource] = reason

    async def write_wishes(self) -> None:
        """Write what could not be written before.

        Raises:
            BusError: the rest may not have been written; to be repeated.
        """
        for (cluster, resource), reason in list(self._unwritten.items()):
            await self.want(cluster, resource, reason)
            self._unwritten.pop((cluster, resource), None)

    async def _write_wish(
        self,
        cluster: str,
        resource: Resource,
        reason: str,
        newer_than: int,
        held: Wanted,
        more: int,
    ) -> None:
        record = await self._reader.cluster(cluster)
        resources = {r.key: r for r in await self._reader.resources(cluster)}
        known = resources.get(resource.key)
        applied = await self._reader.highest_incarnation(cluster, resource.key)
        seen = max(newer_than, held.epoch, known.epoch_id if known else 0)
        wanted = Wanted(
            min_epoch=max(now_ms(), seen + 1, held.min_epoch),
            reason=reason,
            # A watcher whose number is lower than this one claims another (W23).
            incarnation=max(applied, record.incarnation if record else 0, held.incarnation) + more,
            epoch=seen,
            refused=held.refused,
        )
        log.info("epoch_wanted", cluster=cluster, resource=str(resource), reason=reason)
        await want_epoch(self._bus, self._kv, cluster, resource, wanted)

    async def forget_wish(self, cluster: str, resource: Resource) -> None:
        """A type is gone: nobody can list it any more.

        Raises:
            BusError: the wish may still be there.
        """
        if is_resource_name(resource.group, resource.plural):  # else there never was one
            await self._kv.delete(kv_wanted(cluster, resource.group, resource.plural))

    async def want_all(self, reason: str) -> None:
        """Ask for relists of everything: the bucket was lost, and with it checkpoints and wishes.

        Raises:
            BusError: not all wishes were written; to be repeated.
        """
        self._asked.clear()  # what was asked before went with the bucket
        for cluster in await self._reader.clusters():
            for record in await self._reader.resources(cluster.name):
                resource = Resource(record.group, record.version, record.plural)
                await self.want(cluster.name, resource, reason)

    async def _wake(self, cluster: str) -> None:
        try:
            await wake_watchers(self._bus, cluster)
        except BusError as e:
            log.warning("wake_failed", cluster=cluster, error=str(e))


def resource_of(source: CompletedEpoch | EpochEnd | AuditPage | ResourceStatus) -> Resource:
    """The resource that something is about."""
    return Resource(source.group, source.version, source.resource)
