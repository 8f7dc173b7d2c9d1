"""Whether the snapshot's store answers, for /readyz; asked in a loop, also when nobody asks us."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import redis.exceptions
import structlog

from fleetbus.process.health import Health
from fleetbus.snapshot import SnapshotReader

log = structlog.get_logger()

_EVERY: Final = timedelta(seconds=1)
_PATIENCE: Final = timedelta(seconds=5)
_TURN_WITHIN: Final = timedelta(seconds=60)


class StoreProbe:
    """Asks the store again and again.

    Args:
        reader: the snapshot.
        health: where the result is told: ready while the store answers and is not empty.
    """

    def __init__(self, *, reader: SnapshotReader, health: Health) -> None:
        self._reader = reader
        self._problem = "not asked yet"
        self._beat = health.pulse("store-probe", _TURN_WITHIN)
        health.ready_when("snapshot", lambda: self._problem)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            problem = await self._ask()
            if problem != self._problem:
                log.info("snapshot_store", problem=problem)
            self._problem = problem
            self._beat()
            await asyncio.sleep(_EVERY.total_seconds())

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE.total_seconds()):
                generation = await self._reader.generation()
        except (redis.exceptions.RedisError, OSError, TimeoutError) as e:
            return f"the store does not answer: {e or type(e).__name__}"
        return "" if generation else "the store is empty"
