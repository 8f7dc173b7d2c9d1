"""The client of a master that Sentinels name: it follows a failover (rules P10, Q11)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from fleetbus.errors import StoreError
from fleetbus.reconcile import Request
from fleetbus.store.connection import connect
from fleetbus.workqueue import Add, QueuePolicy, RedisQueue
from fleetbus.workqueue.heartbeat import connect_blocking
from support.eventually import eventually
from support.servers.valkey_sentinel import valkey_with_sentinel


@pytest.mark.full
async def test_the_client_finds_the_new_master_and_sends_nothing_twice(tmp_path: Path):
    async with valkey_with_sentinel(tmp_path) as servers:
        with pytest.raises(StoreError, match="No master found for 'other'"):
            await connect(servers.url.replace("/store/", "/other/"))
        client = await connect(servers.url)
        blocking: Any = connect_blocking(servers.url, QueuePolicy())
        try:
            queue = RedisQueue(client, "pods")
            await queue.add([Add(Request("pods", "eu1", "ns", "a"))])
            assert blocking.execute_command("HLEN", "fleetbus:{q:pods}:dirty") == 1
            counted = await count_until_failed(client, servers.kill_and_fail_over())
            await eventually(lambda: answers(client))
            after = int(await client.get("count") or 0)
            assert after <= counted + 1, "the last one was sent, and its answer is not known"
            [lease] = await queue.take(1)
            assert lease.request.name == "a"
            assert await queue.done([lease]) == []
            await asyncio.to_thread(still_answers, blocking)
        finally:
            blocking.close()
            await client.aclose()


async def count_until_failed(client: Redis, failing: Coroutine[Any, Any, None]) -> int:
    """Count up while the master is killed; how often that was answered."""
    task = asyncio.create_task(failing)
    counted = 0
    try:
        while not task.done():
            counted = int(await client.incr("count"))
            await asyncio.sleep(0.001)  # the pace of the load
    except errors.RedisError:
        pass
    await task
    return counted


def still_answers(client: Any) -> None:
    for _ in range(100):
        try:
            assert client.execute_command("HLEN", "fleetbus:{q:pods}:dirty") == 0
        except errors.RedisError:
            continue
        return
    raise AssertionError("the blocking client does not find the new master")


async def answers(client: Redis) -> bool:
    try:
        return bool(await client.set("probe", "x"))
    except errors.RedisError:
        return False


async def test_a_sentinel_that_does_not_answer_is_named_without_the_password():
    with pytest.raises(StoreError, match="No master found for 'store'") as caught:
        await connect("redis+sentinel://:secret@127.0.0.1:1/store")
    assert "secret" not in str(caught.value)
