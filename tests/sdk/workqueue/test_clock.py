"""The store's clock goes back, by a failover or a restored machine: nothing waits for it (Q8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.workqueue import Add, Backoff, QueuePolicy
from support.stores.workqueue import RedisRig, Rig, named

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.workqueue import Lease, Queue

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
POLICY = QueuePolicy(
    backoff=Backoff(MINUTE, 2, HOUR),
    quarantine=Backoff(MINUTE, 2, HOUR),
    reclaims=1,
    breaker=1,
    breaker_pause=Backoff(MINUTE, 2, HOUR),
)
A, B = named("a"), named("b", cluster="c2")


@pytest.fixture
def policy() -> QueuePolicy:
    return POLICY


async def take_one(queue: Queue) -> Lease:
    [lease] = await queue.take(1)
    return lease


async def fail(queue: Queue, *, unreachable: bool = False) -> None:
    await queue.add([Add(A)])
    lease = await take_one(queue)
    await queue.retry(lease, unreachable=unreachable)
    await queue.done([lease])


async def is_taken_in(rig: Rig, span: timedelta) -> bool:
    """Whether the only key is handed out after this time, and not before."""
    assert await rig.queue.take(1) == []
    await rig.advance(span - SECOND)
    assert await rig.queue.take(1) == []
    await rig.advance(2 * SECOND)
    return [lease.request for lease in await rig.queue.take(1)] == [A]


async def test_q8_what_is_delayed_waits_no_longer(rig: Rig):
    await rig.queue.add_after(A, MINUTE)
    await rig.turn_back(HOUR)
    assert await is_taken_in(rig, MINUTE)


async def test_q8_a_retry_waits_no_longer_and_one_added_later_no_shorter(rig: Rig):
    await fail(rig.queue)
    await rig.turn_back(HOUR)
    await rig.queue.add_after(B, 2 * MINUTE)
    assert await is_taken_in(rig, MINUTE)
    assert await rig.queue.take(1) == []
    await rig.advance(MINUTE)
    assert [lease.request for lease in await rig.queue.take(1)] == [B]


async def test_q8_a_clock_that_goes_back_twice_and_comes_back_delays_nothing(rig: Rig):
    await fail(rig.queue)
    await rig.turn_back(HOUR)
    await rig.queue.stats()
    await rig.turn_back(24 * HOUR)
    assert await rig.queue.take(1) == []
    await rig.advance(25 * HOUR, jump=True)
    assert [lease.request for lease in await rig.queue.take(1)] == [A]


async def test_q8_a_quarantine_lasts_no_longer(rig: Rig):
    await rig.queue.add([Add(A)])
    await take_one(rig.queue)
    await rig.advance(POLICY.lease * 1.1)
    await rig.queue.reap()
    await rig.advance(POLICY.lease / 5)
    assert (await rig.queue.reap()).quarantined == [A]
    await rig.turn_back(HOUR)
    assert await is_taken_in(rig, MINUTE)


async def test_q8_q9_a_breaker_stays_open_no_longer(rig: Rig):
    await fail(rig.queue, unreachable=True)
    await rig.turn_back(HOUR)
    [breaker] = (await rig.queue.stats()).breakers
    assert MINUTE * 0.7 < breaker.remaining <= MINUTE
    await rig.advance(MINUTE * 1.1)
    assert (await take_one(rig.queue)).is_probe


async def test_q6_q8_a_lease_ends_as_it_would_have(rig: Rig):
    await rig.queue.add([Add(A), Add(B)])
    lease, lost = await rig.queue.take(2)
    await rig.turn_back(HOUR)
    assert (await rig.queue.reap()).marked == 0
    [first, _] = await rig.queue.processing()
    assert first.remaining <= POLICY.lease
    await rig.advance(POLICY.lease / 2)
    assert await rig.queue.extend([lease]) == []
    await rig.advance(POLICY.lease * 0.6)
    await rig.queue.reap()
    await rig.advance(POLICY.lease / 5)
    assert (await rig.queue.reap()).quarantined == [lost.request]
    assert await rig.queue.extend([lease]) == []


async def test_q8_the_age_of_a_run_is_reported_by_the_clock_as_it_is_now(rig: Rig):
    await rig.queue.add_after(B, 2 * HOUR)
    await rig.turn_back(HOUR)
    await rig.queue.add([Add(A)])
    lease = await take_one(rig.queue)
    # The rig for Redis makes what is stored later instead of the clock earlier.
    reported = (lease.enqueued_at - datetime.now(UTC)) % HOUR
    assert min(reported, HOUR - reported) < timedelta(seconds=30)


async def test_q2_q8_a_queue_that_is_empty_again_leaves_nothing(rig: Rig):
    await fail(rig.queue, unreachable=True)
    await rig.turn_back(HOUR)
    await rig.advance(2 * MINUTE)
    lease = await take_one(rig.queue)
    await rig.queue.forget(lease)
    await rig.queue.done([lease])
    assert await rig.is_empty()


async def test_q8_however_much_waits_no_call_rewrites_it(redis: Redis):
    rig = RedisRig(redis, "copier", POLICY)
    for n in range(100):
        await rig.queue.add_after(named(f"n{n}"), MINUTE)
    await rig.turn_back(HOUR)
    before = (await redis.info("stats"))["total_commands_processed"]
    assert await rig.queue.take(1) == []
    after = (await redis.info("stats"))["total_commands_processed"]
    assert after - before < 60
    await rig.advance(MINUTE)
    assert len(await rig.queue.take(500)) == 100
    await rig.queue.aclose()
