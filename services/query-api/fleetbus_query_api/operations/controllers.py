"""The controllers that have a queue, found now and then: it takes a walk over all keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from fleetbus.workqueue.controllers import list_controllers

if TYPE_CHECKING:
    from redis.asyncio import Redis


class KnownControllers:
    """Remembers the names for a while; of a store without a queue it remembers nothing.

    Args:
        redis: where the queues are.
        lifetime: for how long names are remembered: so long a new controller may be missing.
    """

    def __init__(self, redis: Redis, *, lifetime: timedelta) -> None:
        self._redis = redis
        self._kept_seconds = lifetime.total_seconds()
        self._walking = asyncio.Lock()  # who comes meanwhile takes what the walk has found
        self._names: Sequence[str] = ()
        self._read_at = 0.0

    async def list(self) -> Sequence[str]:
        """The names, in order.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        async with self._walking:
            if not self._names or time.monotonic() - self._read_at > self._kept_seconds:
                self._names = await list_controllers(self._redis)
                self._read_at = time.monotonic()
            return self._names
