"""Requests lists in place of messages that were refused because of a wrong clock (rule B8).

A number that is further ahead than a day was claimed by a watcher whose clock is wrong, or our own
clock is. A watcher whose clock was wrong reads in the resync request that it was refused, and lists
under new numbers. If our clock was wrong, nobody else would request a list: so the request keeps
the number, and once our clock has passed it, also after a restart, another list is requested.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import msgspec
import structlog
from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.update_records import Records
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.resync import decode_resync
from fleetbus_proto.admission import cluster_of, is_too_far_ahead
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import KV_RESYNC, split_kv_resync
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests

log = structlog.get_logger()

_MAX_REFUSED: Final = 10_000
"""Number of resources: a hostile watcher can make up names."""


class ClockSkew:
    """Follows up on messages that were refused for a number too far ahead.

    Args:
        bus: to read the resync requests.
        writer: the snapshot.
        resyncs: requests lists.
        interval: between two looks.
    """

    def __init__(
        self, *, bus: Bus, writer: SnapshotWriter, resyncs: ResyncRequests, interval: timedelta
    ) -> None:
        self._bus = bus
        self._writer = writer
        self._resyncs = resyncs
        self._interval = interval
        self._refused: dict[tuple[str, Resource], int] = {}
        self._log_once = LogOnce()
        # The clusters whose record shows a difference.
        self._skewed: set[str] = set()

    async def report(self, delivery: Delivery) -> None:
        """Record by how much the clock of a cluster's watcher differs from ours."""
        cluster = cluster_of(delivery.subject)
        if cluster and self._log_once.should_log(key=cluster):
            seconds, now = (delivery.ahead - now_ms()) / 1000, utc_now()
            await self._writer.update_records(
                cluster, lambda records: _with_clock(records, seconds, now)
            )
            self._skewed.add(cluster)

    async def clear(self, cluster: str) -> None:
        """Clear the record: a list of the cluster was not refused."""
        if cluster in self._skewed:
            await self._writer.update_records(
                cluster, lambda records: _with_clock(records, 0.0, "")
            )
            self._log_once.reset(cluster)
            self._skewed.discard(cluster)

    async def request_list(self, cluster: str, resource: Resource, number: int) -> None:
        """Request a list for what was refused: now, and when our clock has passed the number."""
        if len(self._refused) < _MAX_REFUSED:
            number = max(number, self._refused.get((cluster, resource), 0))
            self._refused[cluster, resource] = number
        reason = "a number is more than a day ahead"
        await self._resyncs.request_or_defer(cluster, resource, reason, refused=number)

    async def run(self) -> None:
        """Request the lists that became possible, until cancelled."""
        is_read = False
        while True:
            try:
                if not is_read:
                    await self._read()
                    is_read = True
                await self._request_due()
            except (BusError, RedisError, StoreEmpty) as e:
                log.warning("clock_skew_not_resolved", error=str(e) or type(e).__name__)
            await asyncio.sleep(self._interval.total_seconds())

    async def _read(self) -> None:
        """Load what was refused before a restart."""
        for key, entry in (await scan_keys(self._bus, KV_RESYNC)).items():
            try:
                request, (cluster, resource) = decode_resync(entry.value), split_kv_resync(key)
            except (MalformedMessage, ValueError):
                continue
            if request.refused:
                # The list that followed from this request may have been refused, too.
                number = max(request.refused, request.min_epoch)
                self._refused.setdefault((cluster, resource), number)

    async def _request_due(self) -> None:
        for (cluster, resource), number in list(self._refused.items()):
            if not is_too_far_ahead(number, now_ms()):
                reason = "it was refused while a clock was wrong"
                await self._resyncs.request(cluster, resource, reason, newer_than=number)
                self._refused.pop((cluster, resource), None)


def _with_clock(records: Records, seconds: float, at: str) -> Records:
    skewed = msgspec.structs.replace(records.cluster, clock_ahead=seconds, clock_reported_at=at)
    return records._replace(cluster=skewed)
