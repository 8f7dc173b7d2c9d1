"""Looks for orphans now and then, and tells of them (rule D7); it deletes nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import Gauge

from fleetbus.errors import FleetbusError
from fleetbus.fleet import Fleet
from fleetbus.orphans import Orphan, find_orphans

log = structlog.get_logger()

ORPHANS: Final = Gauge(
    "fleetbus_orphans",
    "Objects that carry the mark of this hub and that no MultiClusterResource has on record.",
    ["cluster"],
)
_FIRST_AFTER: Final = timedelta(seconds=30)
_NAMED: Final = 5


class OrphanSweep:
    """The sweep of one process; several find the same.

    Args:
        fleet: where to look.
        period: between two sweeps, about.
    """

    def __init__(self, fleet: Fleet, period: timedelta) -> None:
        self._fleet = fleet
        self._period = period
        # What the last sweep found: an object that is on its way shows up in one, not in two.
        self._suspected: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Sweep until cancelled."""
        pause = min(_FIRST_AFTER, self._period)
        while True:
            await asyncio.sleep(pause.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311
            try:
                await self.sweep()
            except FleetbusError as e:
                log.warning("orphans_not_found_out", error=str(e))
            pause = self._period

    async def sweep(self) -> list[Orphan]:
        """The orphans that were there at the last sweep, too; they are counted and told of.

        Raises:
            FleetbusError: the hub or the store cannot be read.
        """
        fleet = self._fleet
        names = [info.name for info in fleet.clusters()]
        found = await find_orphans(fleet.reader, fleet.cluster(fleet.hub).live, names)
        lasting = [one for one in found if one.uid in self._suspected]
        self._suspected = frozenset(one.uid for one in found)
        counts = Counter(one.cluster for one in lasting)
        for name in names:
            ORPHANS.labels(name).set(counts[name])
        if lasting:
            shown = [str(one) for one in lasting[:_NAMED]]
            log.warning("orphans_found", count=len(lasting), objects=shown)
        return lasting
