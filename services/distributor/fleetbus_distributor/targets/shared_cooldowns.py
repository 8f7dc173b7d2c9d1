"""Shares the cooldowns of slow clusters among the processes, through the store (rule D11).

Without it each process would find out by itself that a cluster hangs, with a slot of every round.
While the store is away each process knows what it has seen itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import structlog

from fleetbus.errors import StoreError
from fleetbus.store.connection import store_errors
from fleetbus_distributor.targets.circuit_breaker import PROBE_AFTER, CircuitBreaker, Cooldown
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

_EVERY: Final = timedelta(seconds=1)
_KEPT: Final = 3 * PROBE_AFTER
"""A cooldown that no process has renewed since is forgotten: nobody has work for the cluster."""
_FAILURE: Final = "the cooldowns of clusters cannot be read or written"


class SharedCooldowns:
    """Copies cooldowns between the breaker of this process and the store.

    Args:
        redis: the store.
        breaker: of this process.
        every: how often others are listened to.
    """

    def __init__(self, redis: Redis, breaker: CircuitBreaker, *, every: timedelta = _EVERY) -> None:
        self._redis = redis
        self._breaker = breaker
        self._every = every.total_seconds()

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            try:
                await self.copy()
            except StoreError as error:
                log.debug("cooldowns_not_shared", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._breaker.changed.wait()

    async def copy(self) -> None:
        """Publish what is new here, and learn what is new there.

        Raises:
            StoreError: the store did not answer; what is new here is published next time.
        """
        self._breaker.changed.clear()
        unpublished = dict(self._breaker.unpublished)
        with store_errors(_FAILURE):
            stored = await self._exchange(unpublished)
        for cluster, published in unpublished.items():
            if self._breaker.unpublished.get(cluster) is published:
                del self._breaker.unpublished[cluster]
        self._breaker.learn(_read(stored))

    async def _exchange(self, unpublished: Mapping[str, Cooldown | None]) -> Mapping[bytes, bytes]:
        key = keys.cooldowns()
        async with self._redis.pipeline(transaction=False) as pipe:
            for cluster, published in unpublished.items():
                if published is None:
                    pipe.hdel(key, cluster)
                    continue
                body = orjson.dumps(asdict(published))
                pipe.hset(key, cluster, cast("Any", body))
            pipe.expire(key, 10 * _KEPT)
            pipe.hgetall(key)
            answers: list[Any] = await pipe.execute()
        return cast("Mapping[bytes, bytes]", answers[-1])


def _read(stored: Mapping[bytes, bytes]) -> dict[str, Cooldown]:
    """The cooldowns that still count; anything may have written to the store (rule S8)."""
    result: dict[str, Cooldown] = {}
    now = time.time()
    for cluster, body in stored.items():
        published = _read_one(body)
        # No writer cools down for longer than a moment, whatever its clock shows.
        if (
            published
            and now - _KEPT.total_seconds()
            < published.until
            <= now + 2 * PROBE_AFTER.total_seconds()
        ):
            result[cluster.decode(errors="replace")] = published
    return result


def _read_one(body: bytes) -> Cooldown | None:
    try:
        fields = orjson.loads(body)
        return Cooldown(str(fields["reason"]), str(fields["message"]), float(fields["until"]))
    except (KeyError, TypeError, ValueError):
        return None
