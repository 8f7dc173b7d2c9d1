"""Writes what the watchers of each cluster are to watch into the bucket.

Only what differs from the bucket is written. A cluster with an empty spec has a key, too: a watcher
takes a missing key for a lost one, and keeps to the last spec that it has read.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.watchers.resync import wake_watchers
from fleetbus.watchers.spec import encode_spec, spec_of
from fleetbus_proto.keys import KV_WATCH, kv_watch_spec
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

_RETRY: Final = timedelta(seconds=5)
_INTERVAL: Final = timedelta(seconds=20)
"""The bucket may have been changed by somebody else, or lost."""


class WatchSpecWriter:
    """Keeps the watch specs in the bucket in line with the registry.

    Args:
        clusters: the registry.
        bus: to read all keys, and to wake watchers.
        kv: the bucket.
    """

    def __init__(self, *, clusters: Clusters, bus: Bus, kv: KeyValue) -> None:
        self._clusters = clusters
        self._bus = bus
        self._kv = kv
        self._changed = asyncio.Event()
        clusters.on_change(self._changed.set)
        bus.on_reconnect(self._changed.set)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._clusters.known()
        while True:
            self._changed.clear()
            pause = _INTERVAL
            try:
                await self._converge()
            except BusError as e:
                log.warning("watch_specs_not_written", error=str(e) or type(e).__name__)
                pause = _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._changed.wait()

    async def _converge(self) -> None:
        entries = await scan_keys(self._bus, KV_WATCH)
        stored = {key: entry.value for key, entry in entries.items()}

        async def write(info: ClusterInfo) -> None:
            key, spec = kv_watch_spec(info.name), encode_spec(spec_of(info))
            if stored.pop(key, None) != spec:
                await self._kv.put(key, spec)
                await wake_watchers(self._bus, info.name)
                log.info("watch_spec_written", cluster=info.name, suspended=info.suspended)

        await for_each(self._clusters.all(), write)
        await for_each(stored, self._kv.delete)  # of clusters that left
