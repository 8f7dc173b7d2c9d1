"""Messages that are refused because of a clock: told, and made good when it is right (rule B8).

A number that is further ahead than a day was claimed by a watcher whose clock is wrong, or ours is.
A watcher whose clock was wrong finds in its wishes that it was refused, and lists under new
numbers. If the clock was ours, nobody else would ask: so the wish keeps the number, and once that
is no longer ahead of our clock, also after a restart, a list is asked for.
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
from fleetbus.snapshot.amend import Records
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.resync import decode_wanted
from fleetbus_proto.admission import cluster_of, is_too_far_ahead
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import KV_WANTED, split_kv_wanted
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.fleet_state import FleetState

log = structlog.get_logger()

_LOOK: Final = timedelta(seconds=5)
_AT_MOST: Final = 10_000
"""Of refused resources: a hostile watcher can make up names."""


class Clocks:
    """What was refused for its number.

    Args:
        bus: where the wishes are.
        writer: the snapshot.
        state: asks for lists.
    """

    def __init__(self, *, bus: Bus, writer: SnapshotWriter, state: FleetState) -> None:
        self._bus = bus
        self._writer = writer
        self._state = state
        self._refused: dict[tuple[str, Resource], int] = {}
        self._told = LogOnce()
        # The clusters of which it was told.
        self._ahead: set[str] = set()

    async def tell(self, delivery: Delivery) -> None:
        """Say of a cluster by how much the clock of its watcher differs from ours."""
        cluster = cluster_of(delivery.subject)
        if cluster and self._told.should_log(key=cluster):
            seconds, now = (delivery.ahead - now_ms()) / 1000, utc_now()
            await self._writer.amend(cluster, lambda held: _with_clock(held, seconds, now))
            self._ahead.add(cluster)

    async def take_back(self, cluster: str) -> None:
        """A list of the cluster was not refused; what is refused after it is told anew."""
        if cluster in self._ahead:
            await self._writer.amend(cluster, lambda held: _with_clock(held, 0.0, ""))
            self._told.reset(cluster)
            self._ahead.discard(cluster)

    async def want(self, cluster: str, resource: Resource, number: int) -> None:
        """Ask for a list in place of what was refused, now and when our clock has passed it."""
        if len(self._refused) < _AT_MOST:
            number = max(number, self._refused.get((cluster, resource), 0))
            self._refused[cluster, resource] = number
        reason = "a number is more than a day ahead"
        await self._state.want_soon(cluster, resource, reason, refused=number)

    async def run(self) -> None:
        """Make good until cancelled."""
        is_read = False
        while True:
            try:
                if not is_read:
                    await self._read()
                    is_read = True
                await self._make_good()
            except (BusError, RedisError, StoreEmpty) as e:
                log.warning("refused_not_made_good", error=str(e) or type(e).__name__)
            await asyncio.sleep(_LOOK.total_seconds())

    async def _read(self) -> None:
        """What was refused before a restart."""
        for key, entry in (await scan_keys(self._bus, KV_WANTED)).items():
            try:
                wanted, (cluster, resource) = decode_wanted(entry.value), split_kv_wanted(key)
            except (MalformedMessage, ValueError):
                continue
            if wanted.refused:
                # The list that this wish has brought may have been refused, too.
                number = max(wanted.refused, wanted.min_epoch)
                self._refused.setdefault((cluster, resource), number)

    async def _make_good(self) -> None:
        for (cluster, resource), number in list(self._refused.items()):
            if not is_too_far_ahead(number, now_ms()):
                reason = "it was refused while a clock was wrong"
                await self._state.want(cluster, resource, reason, newer_than=number)
                self._refused.pop((cluster, resource), None)


def _with_clock(held: Records, seconds: float, told: str) -> Records:
    told_of = msgspec.structs.replace(held.cluster, clock_ahead=seconds, clock_told=told)
    return held._replace(cluster=told_of)
