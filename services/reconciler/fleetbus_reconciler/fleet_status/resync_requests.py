"""Asks the watchers of a cluster for new lists, on behalf of the projector (rule W20)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import structlog
from msgspec.structs import replace
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.watchers.resync import ResyncRequest, read_resync, request_resync, wake_watchers
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.keys import kv_resync
from fleetbus_proto.resources import Resource, is_resource_name

log = structlog.get_logger()


class ResyncRequests:
    """Writes resync requests into the bucket, few enough for a slow list to end.

    Args:
        clusters: the registry: who is in the fleet.
        reader: the snapshot.
        bus: to wake watchers.
        kv: the bucket.
        repeat_after: the shortest time between two requests for the same.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        reader: SnapshotReader,
        bus: Bus,
        kv: KeyValue,
        repeat_after: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = clusters
        self._reader = reader
        self._bus = bus
        self._kv = kv
        self._repeat_after = repeat_after
        self._clock = clock
        # When a request was last made: (cluster, resource, epoch it must be newer than) → time.
        self._requested_at: dict[tuple[str, str, int], float] = {}
        # Requests that could not be written when they came up → their reasons.
        self._pending: dict[tuple[str, Resource], str] = {}

    async def request(
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
        """Request a list, at most every 30 s for one resource and purpose.

        Args:
            cluster: the cluster to list.
            resource: the resource to list.
            reason: for people.
            newer_than: any epoch after this one will do, so an open request is not renewed, as
                its list would start again; 0 requests a list that starts from now.
            audit: the id of the audit that requests it; no other request will do for it.
            new_history: request a new incarnation, and so lists of everything (rule W23).
            refused: the number for which a message was refused, if that is the reason (rule B8).

        Raises:
            BusError: the request may not have been written.
        """
        key = (cluster, resource.key, newer_than or -audit)
        if self._is_repeated(key) or not self._is_possible(cluster, resource):
            return
        stored = await self._read(cluster, resource)
        if newer_than and stored is not None and stored.min_epoch > newer_than:
            await wake_watchers(self._bus, cluster)
        else:
            request = await self._beyond_all_seen(cluster, resource, stored, newer_than)
            number = request.incarnation + int(new_history)
            changes = {"reason": reason, "incarnation": number, "refused": refused}
            log.info("resync_requested", cluster=cluster, resource=str(resource), reason=reason)
            request = replace(request, **changes)
            await request_resync(self._bus, self._kv, cluster, resource, request)
        # Only now: a request that could not be written is tried again at the next occasion.
        self._requested_at[key] = self._clock()

    def _is_repeated(self, key: tuple[str, str, int]) -> bool:
        limit = self._clock() - self._repeat_after.total_seconds()
        self._requested_at = {k: at for k, at in self._requested_at.items() if at > limit}
        return key in self._requested_at

    async def request_or_defer(
        self, cluster: str, resource: Resource, reason: str, *, refused: int = 0
    ) -> None:
        """As `request`, for message handlers: what cannot be written now is written later.

        Otherwise a bucket that is away would stop the events of all clusters (rule B18).
        """
        try:
            await self.request(cluster, resource, reason, refused=refused)
        except BusError as e:
            log.warning("resync_request_deferred", cluster=cluster, error=str(e))
            self._pending[cluster, resource] = reason

    async def write_pending(self) -> None:
        """Write the requests that were deferred.

        Raises:
            BusError: not all were written; to be repeated.
        """
        for (cluster, resource), reason in list(self._pending.items()):
            try:
                await self.request(cluster, resource, reason)
            except RedisError as e:  # its shard is away; those of others are not
                log.warning("resync_request_deferred", cluster=cluster, error=str(e))
                continue
            self._pending.pop((cluster, resource), None)

    async def request_all(self, reason: str) -> None:
        """Request lists of everything: the bucket was lost, with its checkpoints and requests.

        Raises:
            BusError: not all requests were written; to be repeated.
            redis.exceptions.RedisError: the store is away, or a part of it; to be repeated.
        """
        self._requested_at.clear()  # what was requested before went with the bucket
        for cluster in await self._reader.clusters():
            await self.request_lists(cluster.name, reason)

    async def request_lists(self, cluster: str, reason: str) -> None:
        """Request lists of everything in a cluster, whatever was requested before.

        Raises:
            BusError: not all requests were written; to be repeated.
        """
        self.forget_cluster(cluster)
        for record in await self._reader.resources(cluster):
            resource = Resource(record.group, record.version, record.plural)
            await self.request(cluster, resource, reason)

    async def withdraw(self, cluster: str, resource: Resource) -> None:
        """Delete the request for a type that was removed: nobody can list it any more.

        Raises:
            BusError: the request may still be there.
        """
        if is_resource_name(resource.group, resource.plural):  # else there never was one
            await self._kv.delete(kv_resync(cluster, resource.group, resource.plural))

    async def wake(self, cluster: str) -> None:
        """Make a cluster's watchers look at their requests; they also do so by themselves."""
        try:
            await wake_watchers(self._bus, cluster)
        except BusError as e:
            log.warning("wake_failed", cluster=cluster, error=str(e))

    def forget_cluster(self, cluster: str) -> None:
        """A cluster left, or joined again: what was requested before does not delay the next."""
        for key in [key for key in self._requested_at if key[0] == cluster]:
            del self._requested_at[key]
        for place in [place for place in self._pending if place[0] == cluster]:
            del self._pending[place]

    def _is_possible(self, cluster: str, resource: Resource) -> bool:
        if self._clusters.is_known and self._clusters.get(cluster) is None:
            return False  # it left the fleet
        if not is_resource_name(resource.group, resource.plural):
            # No API server has such a resource, and no key of the bucket can hold its name
            # (rule B18).
            log.warning("resync_of_invalid_resource", cluster=cluster, resource=str(resource))
            return False
        return True

    async def _read(self, cluster: str, resource: Resource) -> ResyncRequest | None:
        request = await read_resync(self._kv, cluster, resource)
        if request is not None and is_too_far_ahead(request.min_epoch, now_ms()):
            return None  # by a clock that was wrong: no consumer takes such an epoch (rule B8)
        return request

    async def _beyond_all_seen(
        self, cluster: str, resource: Resource, request: ResyncRequest | None, newer_than: int
    ) -> ResyncRequest:
        """A request that no epoch satisfies which anybody has seen."""
        before = request or ResyncRequest(min_epoch=0)
        record = await self._reader.cluster(cluster)
        resources = {r.key: r for r in await self._reader.resources(cluster)}
        stored = resources.get(resource.key)
        applied = await self._reader.highest_incarnation(cluster, resource.key)
        highest = max(newer_than, before.epoch, stored.epoch_id if stored else 0)
        return ResyncRequest(
            min_epoch=max(now_ms(), highest + 1, before.min_epoch),
            # A watcher whose number is lower than this one claims another (rule W23).
            incarnation=max(applied, record.incarnation if record else 0, before.incarnation),
            epoch=highest,
        )
