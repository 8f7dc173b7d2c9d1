"""Both queues under one roof, with time that a test can move.

The scripts read the server's clock, so for Redis time is moved the other way round: what is stored
is made older. Nothing in the product knows of this.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Protocol, cast

from fleetbus.reconcile import Request
from fleetbus.workqueue import MemoryQueue, Queue, QueuePolicy, RedisQueue
from fleetbus_proto import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

_TIMED_ZSETS = ("leases", "delayed", "quarantine", "breakers", "noted")


class Rig(Protocol):
    """A queue and its clock."""

    queue: Queue
    controller: str

    async def advance(self, span: timedelta, *, jump: bool = False) -> None:
        """Let time pass; as a jump nobody called in between, which holds the reaper."""
        ...

    async def turn_back(self, span: timedelta) -> None:
        """Set the clock back."""
        ...

    async def is_empty(self) -> bool:
        """Whether the queue has left nothing behind."""
        ...


class RedisRig:
    """`RedisQueue` on a real server."""

    def __init__(self, redis: Redis, controller: str, policy: QueuePolicy) -> None:
        self.queue: Queue = RedisQueue(redis, controller, policy=policy)
        self.controller = controller
        self._redis = redis

    async def advance(self, span: timedelta, *, jump: bool = False) -> None:
        micros = span // timedelta(microseconds=1)
        for suffix in _TIMED_ZSETS:
            key = keys.queue(self.controller, suffix)
            for item, score in await self._redis.zrange(key, 0, -1, withscores=True):
                if 0 <= float(score) < inf:  # else it is a mark of a breaker, and no time
                    await self._redis.zadd(key, {cast("bytes", item): int(score) - micros})
        await self._shift_hash("suspects", micros)
        await self._shift_hash("reclaims", micros)
        await self._shift_hash("liveness", micros, ("hold",))
        if jump:
            await self._shift_hash("clock", micros, ("at",))

    async def turn_back(self, span: timedelta) -> None:
        await self.advance(-span, jump=True)

    async def is_empty(self) -> bool:
        return not await self._redis.keys(keys.queue(self.controller, "*"))

    async def _shift_hash(
        self, suffix: str, micros: int, only: tuple[str, ...] | None = None
    ) -> None:
        key = keys.queue(self.controller, suffix)
        content = cast("Mapping[bytes, bytes]", await self._redis.hgetall(key))
        for field, value in content.items():
            if only is None or field.decode() in only:
                # Times have 16 digits until the year 2286; nothing else in these hashes has.
                moved = re.sub(rb"\d{16}", lambda hit: b"%d" % (int(hit[0]) - micros), value)
                await self._redis.hset(key, field.decode(), moved)


class MemoryRig:
    """`MemoryQueue` with a clock that can be set."""

    def __init__(self, controller: str, policy: QueuePolicy) -> None:
        self._offset = 0.0
        self._policy = policy
        self.memory = MemoryQueue(
            controller, policy=policy, clock=lambda: time.time() + self._offset
        )
        self.queue: Queue = self.memory
        self.controller = controller

    async def advance(self, span: timedelta, *, jump: bool = False) -> None:
        steps = 1 if jump else span // (self._policy.lease / 3) + 1
        for _ in range(steps):
            self._offset += span.total_seconds() / steps
            if not jump:
                await self.queue.stats()

    async def turn_back(self, span: timedelta) -> None:
        self._offset -= span.total_seconds()

    async def is_empty(self) -> bool:
        return self.memory.is_empty()


def named(name: str, *, cluster: str = "c1", controller: str = "copier") -> Request:
    """A request in namespace ns."""
    return Request(controller, cluster, "ns", name)
