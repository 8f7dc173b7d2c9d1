"""A call that makes items ready takes them for a taker of the same process (rule Q11)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetbus.store.connection import connect
from fleetbus.workqueue import Add, QueueUnavailableError, RedisQueue
from fleetbus_proto import keys
from support.eventually import eventually
from support.stores.workqueue import named

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from fleetbus.workqueue import Lease

A, B, C = named("a"), named("b"), named("c")
LONG = timedelta(seconds=20)


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    queue = RedisQueue(redis, "copier")
    await queue.add([Add(A)])  # the server knows the scripts from now on
    await queue.done(await queue.take(1))
    yield queue
    await queue.aclose()


@asynccontextmanager
async def waiting(queue: RedisQueue, limit: int = 10) -> AsyncGenerator[asyncio.Task[list[Lease]]]:
    """A taker that waits, after its subscription was confirmed."""
    taking = asyncio.create_task(queue.take(limit, wait=LONG))
    listeners = cast("Any", queue)._takers

    async def waits() -> bool:
        await asyncio.sleep(0.05)  # the confirmation of the subscription wakes it once
        return bool(listeners)

    await eventually(waits)
    yield taking
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)


async def scripts(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def published(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return stats.get("cmdstat_publish", {"calls": 0})["calls"]


async def test_q1_an_added_item_reaches_the_waiting_taker_with_the_same_script(
    queue: RedisQueue, redis: Redis
):
    async with waiting(queue) as taking:
        before, notified = await scripts(redis), await published(redis)
        await queue.add([Add(A), Add(B)])
        assert [lease.request for lease in await taking] == [A, B]
        assert await scripts(redis) == before + 1
        assert await published(redis) == notified, "no other process is woken for it"


async def test_q1_what_the_taker_has_no_room_for_is_left_to_others_who_are_notified(
    queue: RedisQueue, redis: Redis
):
    async with waiting(queue, limit=1) as taking:
        notified = await published(redis)
        await queue.add([Add(A), Add(B)])
        assert [lease.request for lease in await taking] == [A]
        assert await published(redis) == notified + 1
    assert [lease.request for lease in await queue.take(5)] == [B]


async def test_q1_a_request_that_is_dirty_again_is_taken_with_the_end_of_its_lease(
    queue: RedisQueue, redis: Redis
):
    await queue.add([Add(A)])
    [lease] = await queue.take(1)
    await queue.add([Add(A)])
    async with waiting(queue) as taking:
        before = await scripts(redis)
        assert await queue.done([lease]) == []
        [again] = await taking
        assert (again.request, await scripts(redis)) == (A, before + 1)


async def test_a_taker_that_was_served_asks_again_only_after_a_notification(
    queue: RedisQueue, redis: Redis
):
    async with waiting(queue) as taking:
        await queue.add([Add(A)])
        await taking
    before = await scripts(redis)
    async with waiting(queue) as taking:
        assert await scripts(redis) == before, "nothing can have become ready"
        await RedisQueue(redis, "copier").add([Add(B)])
        assert [lease.request for lease in await taking] == [B]


async def test_q8_a_taker_that_was_served_wakes_for_what_becomes_due(queue: RedisQueue):
    await queue.add_after(B, timedelta(milliseconds=300))
    async with waiting(queue) as taking:
        await queue.add([Add(A)])
        assert [lease.request for lease in await taking] == [A]
    leases = await asyncio.wait_for(queue.take(5, wait=LONG), timeout=0.9)
    assert [lease.request for lease in leases] == [B]


async def test_q11_if_the_answer_is_lost_the_taker_repeats_its_take(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
):
    async with waiting(queue) as taking:
        with monkeypatch.context() as patched:
            send = cast("Any", queue)._send

            async def lose_the_answer(call: Any) -> Any:
                await send(call)
                patched.undo()
                raise QueueUnavailableError("the answer is lost")

            patched.setattr(queue, "_send", lose_the_answer)
            with pytest.raises(QueueUnavailableError):
                await queue.add([Add(A)])
        [lease] = await asyncio.wait_for(taking, timeout=1)
    assert lease.request == A
    assert len(await queue.processing()) == 1


async def test_q11_if_the_caller_is_cancelled_what_was_taken_is_given_back(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
):
    async with waiting(queue) as taking:
        with monkeypatch.context() as patched:
            send = cast("Any", queue)._send

            async def cancelled(call: Any) -> Any:
                await send(call)
                patched.undo()
                raise asyncio.CancelledError

            patched.setattr(queue, "_send", cancelled)
            with pytest.raises(asyncio.CancelledError):
                await queue.add([Add(A)])
        [lease] = await asyncio.wait_for(taking, timeout=1)
    assert lease.request == A
    assert await queue.done([lease]) == []


async def test_q11_what_a_cancelled_call_takes_after_it_was_asked_for_is_given_back(
    queue: RedisQueue, valkey_url: str
):
    many = [Add(named(f"n{number}")) for number in range(40)]
    client = await connect(valkey_url)  # its long calls have a connection of their own
    other = RedisQueue(client, "copier")
    async with waiting(other, limit=len(many)) as taking:
        adding = asyncio.create_task(other.add(many))
        await asyncio.sleep(0)
        adding.cancel()
        taken = await asyncio.wait_for(taking, timeout=5)
    await other.aclose()
    await client.aclose()
    assert len(taken) == len(many), "nobody holds one of them"
    assert await queue.done(taken) == []


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_q11_a_taker_that_is_gone_before_the_answer_leaves_the_items_to_others(
    queue: RedisQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
):
    wait = LONG if is_cancelled else timedelta(milliseconds=100)
    taking = asyncio.create_task(queue.take(5, wait=wait))
    await eventually(lambda: bool(cast("Any", queue)._takers))
    send = cast("Any", queue)._send

    async def slow(call: Any) -> Any:
        monkeypatch.undo()
        answer = await send(call)
        if is_cancelled:
            taking.cancel()
        await asyncio.wait([taking])
        return answer

    monkeypatch.setattr(queue, "_send", slow)
    await queue.add([Add(A)])
    other = RedisQueue(redis, "copier")
    assert [lease.request for lease in await other.take(5)] == [A]
    assert len(await other.processing()) == 1


async def test_q5_only_one_call_at_a_time_takes_for_a_taker(queue: RedisQueue):
    async with waiting(queue, limit=1) as taking:
        await asyncio.gather(*(queue.add([Add(request)]) for request in (A, B, C)))
        assert len(await taking) == 1
    assert len(await queue.processing()) == 1
    assert (await queue.stats()).depth[A.cluster, 0] == 2  # pyright: ignore[reportArgumentType]


async def test_the_store_holds_nothing_of_a_queue_whose_items_are_done(
    queue: RedisQueue, redis: Redis
):
    async with waiting(queue) as taking:
        await queue.add([Add(A)])
        assert await queue.done(await taking) == []
    assert await redis.keys(keys.queue("copier", "*")) == []
