"""A script that meets a key of the wrong type ends halfway; no item is lost by that (rule Q7)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetbus.workqueue import Add, QueuePolicy, QueueUnavailableError, RedisQueue
from fleetbus_proto import keys
from support.stores.workqueue import named

if TYPE_CHECKING:
    from redis.asyncio import Redis

A, B = named("a"), named("b")
POLICY = QueuePolicy(lease=timedelta(milliseconds=100))
PARTS = ("ready:0:c1", "turns:0", "dirty", "processing", "leases", "takes", "attempts", "notes")


async def take(queue: RedisQueue) -> set[Any]:
    leases = await queue.take(5)
    await queue.done(leases, {})
    return {lease.request for lease in leases}


@pytest.mark.parametrize("suffix", PARTS)
async def test_q7_what_a_foreign_key_has_held_up_is_taken_once_that_is_gone(
    redis: Redis, suffix: str
):
    key = keys.queue("copier", suffix)
    for is_late in (False, True):
        queue = RedisQueue(redis, "copier", policy=POLICY)
        if is_late:
            await queue.add([Add(A), Add(B)])
            if await redis.exists(key):
                await redis.rename(key, "aside")
        await redis.set(key, "of another program")
        with suppress(QueueUnavailableError):
            await queue.add([Add(A), Add(B)])
        with suppress(QueueUnavailableError):
            await take(queue)
        await redis.delete(key)
        if await redis.exists("aside"):
            await redis.rename("aside", key)
        await queue.add([Add(A), Add(B)])
        taken: set[Any] = set()
        async with asyncio.timeout(15):
            while taken != {A, B}:
                await queue.reap()
                taken |= await take(queue)
                await asyncio.sleep(0.02)  # between two turns
        await queue.aclose()
        await cast("Any", redis.flushall())
