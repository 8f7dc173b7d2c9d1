"""Finds orphans periodically, and reports them (rule D7); it deletes nothing.

It reads the snapshot and the hub only, so that no cluster that hangs can delay it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, cast

import structlog
from prometheus_client import Gauge

from fleetbus.errors import FleetbusError, KubeError
from fleetbus.fleet.inventory_chunks import NewerStatus
from fleetbus.fleet.orphans import Orphan, find_orphans
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process.redact import cut
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.hub import chunks, status
from fleetbus_distributor.hub.document import Document, KubeEvent
from fleetbus_distributor.hub.entries import MAX_MESSAGE

log = structlog.get_logger()

ORPHANS: Final = Gauge(
    "fleetbus_orphans",
    "Objects that carry the mark of this hub and are on record in no MultiClusterResource.",
    ["cluster"],
)
_FIRST_AFTER: Final = timedelta(seconds=30)
_MAX_NAMED: Final = 5

_Name: TypeAlias = tuple[str, str]
"""Namespace and name of a MultiClusterResource."""


class OrphanSweep:
    """The sweep of one process; that of another one finds the same.

    Args:
        fleet: the clusters.
        reader: the snapshot.
        period: about how often it runs.
    """

    def __init__(self, fleet: FleetView, reader: SnapshotReader, period: timedelta) -> None:
        self._fleet = fleet
        self._reader = reader
        self._period = period
        # The UIDs that the last sweep found: an object that is just being applied is found once.
        self._suspected: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Sweep until cancelled."""
        pause = min(_FIRST_AFTER, self._period)
        while True:
            await asyncio.sleep(pause.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311
            try:
                await self.sweep()
            except FleetbusError as e:
                log.warning("orphan_sweep_failed", error=str(e))
            except Exception:
                # For example, an object of an unexpected shape: distribution goes on without it.
                log.exception("orphan_sweep_failed")
            pause = self._period

    async def sweep(self) -> list[Orphan]:
        """Count and report the orphans that the last sweep found, too.

        Raises:
            FleetbusError: the hub or the store cannot be read.
        """
        names = [info.name for info in self._fleet.clusters()]
        hub = self._fleet.cluster(self._fleet.hub).live
        orphans = await find_orphans(self._reader, hub, names)
        lasting = [orphan for orphan in orphans if orphan.uid in self._suspected]
        self._suspected = frozenset(orphan.uid for orphan in orphans)
        counts = Counter(orphan.cluster for orphan in lasting)
        for name in names:
            ORPHANS.labels(name).set(counts[name])
        if lasting:
            named = [str(orphan) for orphan in lasting[:_MAX_NAMED]]
            log.warning("orphans_found", count=len(lasting), objects=named)
        await self._report(hub, orphans, lasting)
        return lasting

    async def _report(
        self, hub: KubeClient, orphans: Sequence[Orphan], lasting: Sequence[Orphan]
    ) -> None:
        """Set or clear the condition of every MultiClusterResource."""
        messages = {name: _describe(share) for name, share in _by_owner(lasting).items()}
        suspected = _by_owner(orphans).keys()
        now = datetime.now(UTC)
        resources = await hub.list(MULTI_CLUSTER_RESOURCES)
        if removed := await chunks.sweep(hub, resources, now=now):
            log.info("unused_chunks_removed", count=removed)
        for resource in resources:
            name = (str(resource["metadata"]["namespace"]), str(resource["metadata"]["name"]))
            current = status.orphans_message(cast("status.Status", resource.get("status") or {}))
            message = messages.get(name, "")
            # Another process may have found twice what this one has found once.
            if message != current and (message or name not in suspected):
                await _write(hub, name, message)


async def _write(hub: KubeClient, name: _Name, message: str) -> None:
    resource = await hub.get(MULTI_CLUSTER_RESOURCES, *name)
    if resource is None:
        return
    document = Document(hub, resource)
    before = document.status
    try:
        document.check_format()
        await document.write_status(status.with_orphans(before, document.generation, message))
    except NewerStatus:
        return  # nothing of it may be written; the rounds report it
    except KubeError as e:
        # Most likely somebody else has just written it: the next sweep tries again.
        log.info("orphans_not_reported", namespace=name[0], name=name[1], error=str(e))
        return
    if message:
        await document.emit_events([KubeEvent(status.ORPHANED, message, is_warning=True)])


def _by_owner(orphans: Sequence[Orphan]) -> dict[_Name, list[Orphan]]:
    shares: dict[_Name, list[Orphan]] = {}
    for orphan in orphans:
        shares.setdefault((orphan.owner.namespace, orphan.owner.name), []).append(orphan)
    return shares


def _describe(orphans: Sequence[Orphan]) -> str:
    named = ", ".join(status.abridge([str(orphan) for orphan in orphans], _MAX_NAMED))
    return cut(
        f"{len(orphans)} object(s) carry its mark and are not on record: {named}; they are left as "
        "they are until a template names them, or somebody deletes them (fleetbus orphans)",
        MAX_MESSAGE,
    )
