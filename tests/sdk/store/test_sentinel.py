"""The client of a master that Sentinels name: it follows a failover (rules P10, P16, Q11)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
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
from fleetbus.workqueue.notify import Subscription
from support.eventually import eventually
from support.servers.valkey_cluster import ask
from support.servers.valkey_sentinel import NAME, ValkeyWithSentinel, valkey_with_sentinel


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


@pytest.mark.full
async def test_a_lost_node_with_the_master_and_a_sentinel_is_left_before_answers_time_out(
    tmp_path: Path,
):
    """They hang, as on a machine without power: no connection ends, and nobody refuses one."""
    async with valkey_with_sentinel(tmp_path, sentinels=3) as servers:
        client = await connect(servers.url, answer_within=timedelta(minutes=5))
        subscription = Subscription(client, "channel")
        subscription.start()
        node = (servers.first, servers.sentinels[0])
        try:
            await eventually(lambda: subscription.signal.count == 1)  # it has subscribed
            for server in node:
                server.process.send_signal(signal.SIGSTOP)
            lost: Any = asyncio.ensure_future(client.set("probe", "x"))
            await servers.has_failed_over()
            async with asyncio.timeout(30):  # or minutes
                with pytest.raises(errors.ConnectionError, match="the master is"):
                    await lost
            await eventually(lambda: answers(client))
            await eventually(lambda: subscription.signal.count == 2)  # at the new master
            for server in node:
                server.process.send_signal(signal.SIGCONT)
            await servers.first_follows()
            assert await client.get("probe") == b"x"
        finally:
            for server in node:
                server.process.send_signal(signal.SIGCONT)
            await subscription.aclose()
            await client.aclose()


@pytest.mark.slow
async def test_the_latest_failover_is_believed_whichever_sentinel_answers_first(tmp_path: Path):
    """A Sentinel that was cut off with an old master names that one, without any doubt."""
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(valkey_with_sentinel(tmp_path / name))
            for name in ("old", "new")
        ]
        for epoch, side in enumerate(sides, 1):
            await ask(side.first, "SET", "side", str(epoch))
        await eventually(lambda: _begins_failover(sides[1]), timedelta(seconds=60))
        await sides[1].has_failed_over()
        places = [side.url.partition("//")[2].partition("/")[0] for side in sides]
        for order in (places, places[::-1]):
            url = f"redis+sentinel://{','.join(order)}/{NAME}/0"
            client = await connect(url)
            blocking: Any = connect_blocking(url, QueuePolicy())
            try:
                assert await client.get("side") == b"2"
                assert await asyncio.to_thread(blocking.get, "side") == b"2"
            finally:
                blocking.close()
                await client.aclose()


async def _begins_failover(servers: ValkeyWithSentinel) -> bool:
    """Ask for a failover; a Sentinel that has just started knows of no replica yet."""
    try:
        await ask(servers.sentinel, "SENTINEL FAILOVER", NAME)
    except OSError as e:
        if "NOGOODSLAVE" not in str(e):
            raise
        return False
    return True


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
