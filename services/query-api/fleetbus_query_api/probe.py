"""Probes the store of the snapshot periodically, for /readyz."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import redis.exceptions
import structlog

from fleetbus.errors import StoreError
from fleetbus.process.health import Health
from fleetbus.snapshot import SnapshotReader

log = structlog.get_logger()

_INTERVAL: Final = timedelta(seconds=1)
_TIMEOUT: Final = timedelta(seconds=5)
_TURN_WITHIN: Final = timedelta(seconds=60)


class StoreProbe:
    """Probes the store.

    Args:
        reader: the snapshot.
        health: ready while the store answers and is not empty.
    """

    def __init__(self, *, reader: SnapshotReader, health: Health) -> None:
        self._reader = reader
        self._problem = "not probed yet"
        self._beat = health.liveness("store-probe", _TURN_WITHIN)
        health.ready_when("snapshot", lambda: self._problem)

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            problem = await self._probe()
            if problem != self._problem:
                log.info("store_probed", problem=problem)
            self._problem = problem
            self._beat()
            await asyncio.sleep(_INTERVAL.total_seconds())

    async def _probe(self) -> str:
        try:
            async with asyncio.timeout(_TIMEOUT.total_seconds()):
                generation = await self._reader.generation()
        except (redis.exceptions.RedisError, OSError, TimeoutError) as e:
            return f"the store does not answer: {e or type(e).__name__}"
        except StoreError as e:
            return str(e)
        return "" if generation else "the store is empty"
