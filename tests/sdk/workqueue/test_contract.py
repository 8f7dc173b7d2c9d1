"""The contract of `Queue`, kept by both implementations: one test per rule."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.workqueue import (
    Add,
    LeaseLostError,
    Priority,
    QueueClosedError,
    QueuePolicy,
    encode_trigger,
)
from support.stores.workqueue import Rig, named

if TYPE_CHECKING:
    from fleetbus.workqueue import Lease, Queue
    from fleetbus.workqueue.queue import Reaped

LEASE = QueuePolicy().lease
A, B, C = named("a"), named("b"), named("c")


async def names(queue: Queue, limit: int = 100) -> list[str]:
    """Take, and end at once."""
    leases = await queue.take(limit)
    assert await queue.done(leases) == []
    return [lease.request.name for lease in leases]


async def take_one(queue: Queue) -> Lease:
    [lease] = await queue.take(1)
    return lease


async def reap_twice(rig: Rig) -> Reaped:
    """Both phases, a grace apart."""
    await rig.queue.reap()
    await rig.advance(LEASE / 5)
    return await rig.queue.reap()


async def crash_owner(rig: Rig) -> Reaped:
    """A worker takes the next request and dies."""
    await take_one(rig.queue)
    await rig.advance(LEASE * 1.1)
    return await reap_twice(rig)


async def test_q1_a_key_added_twice_is_taken_once(queue: Queue):
    await queue.add([Add(A), Add(A), Add(B)])
    await queue.add([Add(A)])
    assert await names(queue) == ["a", "b"]
    assert await names(queue) == []


async def test_q1_a_key_added_while_processed_runs_again_after_done_only(queue: Queue):
    await queue.add([Add(A)])
    lease = await take_one(queue)
    await queue.add([Add(A)])
    assert await queue.take(1) == []
    assert await queue.done([lease]) == []
    assert await names(queue) == ["a"]


async def test_q1_ten_thousand_adds_while_processed_are_one_further_run(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    lease = await take_one(queue)
    for _ in range(20):
        await queue.add([Add(A, trigger=encode_trigger(1, str(n))) for n in range(500)])
    await queue.done([lease])
    again = await queue.take(10)
    assert [one.trigger for one in again] == [b"1/499"]
    await queue.done(again)
    assert await queue.take(10) == []
    assert await rig.is_empty()


async def test_q2_an_emptied_queue_leaves_nothing_behind(rig: Rig):
    queue = rig.queue
    adds = [Add(named(f"n{n}", cluster=f"c{n % 7}"), Priority(n % 3), b"1/5") for n in range(60)]
    await queue.add(adds)
    await queue.add_after(named("later"), timedelta(seconds=5))
    for _ in range(5):
        leases = await queue.take(7)
        await queue.retry(leases[0])
        await queue.reap()
        await queue.requeue_after(leases[-1], timedelta(seconds=5))
        await queue.done(leases)
        await rig.advance(timedelta(milliseconds=3))
    assert not await rig.is_empty()
    await rig.advance(timedelta(seconds=6))
    while leases := await queue.take(50):
        for lease in leases:
            await queue.forget(lease)
        await queue.done(leases)
    assert await rig.is_empty()


async def test_q4_done_extend_retry_and_forget_under_another_fence_are_refused(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    stale = await take_one(queue)
    await rig.advance(LEASE * 1.1)
    assert (await reap_twice(rig)).recovered == 1
    current = await take_one(queue)
    assert current.fence != stale.fence
    assert await queue.extend([stale, current]) == [stale]
    assert await queue.done([stale]) == [stale]
    assert await queue.give_back([stale]) == [stale]
    for refused in (
        queue.retry(stale),
        queue.forget(stale),
        queue.requeue_after(stale, timedelta(0)),
    ):
        with pytest.raises(LeaseLostError):
            await refused
    assert await queue.done([current]) == []
    assert await queue.done([current]) == [current]


async def test_q6_the_reaper_marks_first_and_recovers_later(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    await take_one(queue)
    assert (await queue.reap()).marked == 0
    await rig.advance(LEASE * 1.1)
    first = await queue.reap()
    assert (first.marked, first.recovered) == (1, 0)
    again = await queue.reap()
    assert (again.marked, again.recovered) == (0, 0)
    await rig.advance(LEASE / 5)
    assert (await queue.reap()).recovered == 1
    assert await names(queue) == ["a"]


async def test_q6_an_owner_that_extends_after_the_mark_keeps_its_key(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    lease = await take_one(queue)
    await rig.advance(LEASE * 1.1)
    assert (await queue.reap()).marked == 1
    assert await queue.extend([lease]) == []
    assert (await reap_twice(rig)).recovered == 0
    await rig.advance(LEASE * 1.1)
    later = await queue.reap()
    assert (later.marked, later.recovered) == (1, 0)
    assert await queue.done([lease]) == []


async def test_q6_after_a_jump_of_the_clock_nothing_is_reaped_for_one_lease(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    await take_one(queue)
    await rig.advance(LEASE * 3, jump=True)
    reaped = await reap_twice(rig)
    assert reaped.held > timedelta(0)
    assert (reaped.marked, reaped.recovered) == (0, 0)
    await rig.advance(LEASE)
    assert (await reap_twice(rig)).recovered == 1


async def test_q6_a_recovered_key_keeps_its_place_and_trigger(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A, Priority.LIVE, encode_trigger(3, "77"))])
    before = await take_one(queue)
    await queue.add([Add(B)])
    await rig.advance(LEASE * 1.1)
    await reap_twice(rig)
    after, _ = await queue.take(2)
    assert (after.request, after.trigger, after.priority) == (A, b"3/77", Priority.LIVE)
    assert after.enqueued_at == before.enqueued_at


async def test_q7_retries_back_off_exponentially_until_forgotten(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    delays: list[timedelta] = []
    for attempt in range(20):
        lease = await take_one(queue)
        assert lease.attempt == attempt
        delays.append(await queue.retry(lease))
        await queue.done([lease])
        await rig.advance(delays[-1])
    milliseconds = [delay / timedelta(milliseconds=1) for delay in delays]
    assert milliseconds == [min(5 * 2**n, 1_000_000) for n in range(20)]
    lease = await take_one(queue)
    await queue.forget(lease)
    assert await queue.retry(lease) == timedelta(milliseconds=5)


async def test_q7_three_dead_owners_quarantine_a_key_and_spare_its_siblings(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    for _ in range(2):
        assert (await crash_owner(rig)).quarantined == []
    assert (await crash_owner(rig)).quarantined == [A]
    await queue.add([Add(A), Add(B)])
    assert await names(queue) == ["b"]
    [quarantined_item] = await queue.quarantined()
    assert (quarantined_item.request, quarantined_item.times) == (A, 1)
    assert (await queue.stats()).quarantined == 1


async def test_q7_a_key_leaves_quarantine_by_itself_and_returns_for_longer(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    for _ in range(3):
        await crash_owner(rig)
    await rig.advance(timedelta(seconds=61))
    assert (await crash_owner(rig)).quarantined == [A]
    [quarantined_item] = await queue.quarantined()
    assert quarantined_item.times == 2
    assert timedelta(seconds=110) < quarantined_item.remaining <= timedelta(seconds=120)
    await rig.advance(timedelta(seconds=121))
    assert await names(queue) == ["a"]
    assert await rig.is_empty()


async def test_q7_release_gives_a_key_three_new_owners(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    for _ in range(3):
        await crash_owner(rig)
    assert await queue.release(A)
    assert not await queue.release(A)
    assert (await crash_owner(rig)).quarantined == []
    assert await names(queue) == ["a"]
    assert await rig.is_empty()


async def test_q7_dead_owners_long_apart_do_not_quarantine(rig: Rig):
    await rig.queue.add([Add(A)])
    for _ in range(5):
        assert (await crash_owner(rig)).quarantined == []
        await rig.advance(timedelta(minutes=6))


async def test_q8_of_two_delays_the_earlier_end_counts(rig: Rig):
    queue = rig.queue
    await queue.add_after(A, timedelta(seconds=100))
    await queue.add_after(A, timedelta(seconds=10))
    await queue.add_after(A, timedelta(seconds=50))
    await rig.advance(timedelta(seconds=9))
    assert await names(queue) == []
    await rig.advance(timedelta(seconds=2))
    assert await names(queue) == ["a"]
    await rig.advance(timedelta(seconds=200))
    assert await names(queue) == []


async def test_q8_a_plain_add_leaves_the_wait_alone(rig: Rig):
    queue = rig.queue
    await queue.add_after(A, timedelta(seconds=10))
    await queue.add([Add(A)])
    assert await names(queue) == ["a"]
    await rig.advance(timedelta(seconds=11))
    assert await names(queue) == ["a"]


async def test_q8_requeue_after_forgets_the_failures(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    lease = await take_one(queue)
    await queue.retry(lease)
    await queue.done([lease])
    await rig.advance(timedelta(seconds=1))
    lease = await take_one(queue)
    await queue.requeue_after(lease, timedelta(seconds=30))
    await queue.done([lease])
    assert await queue.take(1) == []
    await rig.advance(timedelta(seconds=31))
    assert (await take_one(queue)).attempt == 0


async def test_q9_clusters_take_turns_whatever_their_backlog(queue: Queue):
    flood = [Add(named(f"f{n}", cluster="flood")) for n in range(200)]
    await queue.add(flood)
    for name in ("calm", "quiet"):
        await queue.add([Add(named(f"{name}{n}", cluster=name)) for n in range(3)])
    first = [lease.request.cluster for lease in await queue.take(10)]
    assert Counter(first) == {"flood": 4, "calm": 3, "quiet": 3}


async def test_q9_a_cluster_that_comes_back_each_time_does_not_starve_the_other(queue: Queue):
    await queue.add([Add(named(f"n{n}", cluster="z")) for n in range(50)])
    served: Counter[str] = Counter()
    for n in range(40):
        await queue.add([Add(named(f"n{n}", cluster="a"))])
        lease = await take_one(queue)
        served[lease.request.cluster] += 1
        await queue.done([lease])
    assert served["z"] >= 19
    assert served["a"] >= 19


async def test_q10_each_band_keeps_its_share_under_full_live_load(queue: Queue):
    for band in Priority:
        await queue.add([Add(named(f"{band}-{n}"), band) for n in range(500)])
    taken = Counter(lease.priority for lease in await queue.take(220))
    assert taken[Priority.LIVE] >= 130
    assert taken[Priority.RETRY] >= 40
    assert taken[Priority.INITIAL] >= 20


async def test_q10_a_low_key_waits_for_few_live_ones(queue: Queue):
    await queue.add([Add(A, Priority.INITIAL)])
    served: list[str] = []
    for n in range(12):
        await queue.add([Add(named(f"live{n}"))])
        served += await names(queue, 1)
    assert "a" in served


async def test_q10_a_band_without_items_gains_no_credit(queue: Queue):
    await queue.add([Add(named(f"n{n}")) for n in range(100)])
    await queue.take(90)
    await queue.add([Add(A, Priority.INITIAL)])
    assert (await take_one(queue)).priority is Priority.LIVE


async def test_q11_the_same_token_gets_the_same_items(queue: Queue):
    await queue.add([Add(named(f"n{n}")) for n in range(20)])
    first = await queue.take(5, token="t1")
    assert await queue.take(5, token="t2") != first
    again = await queue.take(5, token="t1")
    assert sorted(lease.request for lease in again) == sorted(lease.request for lease in first)
    assert {lease.fence for lease in again} == {first[0].fence}
    assert await queue.done(again) == []
    assert len(await queue.take(5, token="t1")) == 5


async def test_q11_a_repeated_take_with_less_room_gives_the_rest_back(queue: Queue):
    await queue.add([Add(named(f"n{n}")) for n in range(5)])
    await queue.take(5, token="t")
    few = await queue.take(2, token="t")
    assert len(few) == 2
    assert (await queue.stats()).processing == 2
    remaining = await queue.take(5)
    assert len({lease.request for lease in few + remaining}) == 5


async def test_q11_a_repeated_take_has_a_whole_lease(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    await queue.take(1, token="t")
    await rig.advance(LEASE * 0.9)
    [lease] = await queue.take(1, token="t")
    assert lease.deadline > time.monotonic() + LEASE.total_seconds() * 0.9
    await rig.advance(LEASE / 2)
    assert (await reap_twice(rig)).recovered == 0


async def test_q12_a_crash_before_done_repeats_the_run(rig: Rig):
    await rig.queue.add([Add(A)])
    await crash_owner(rig)
    assert await names(rig.queue) == ["a"]


async def test_q13_a_high_priority_goes_first(queue: Queue):
    await queue.add([Add(A, Priority.INITIAL), Add(B, Priority.RETRY), Add(C, Priority.LIVE)])
    assert await names(queue) == ["c", "b", "a"]


async def test_q13_a_raised_priority_keeps_the_age_and_a_lower_one_changes_nothing(queue: Queue):
    await queue.add([Add(A, Priority.INITIAL)])
    await queue.add([Add(B), Add(C)])
    await queue.add([Add(B, Priority.INITIAL)])
    await queue.add([Add(A, Priority.LIVE)])
    assert await names(queue) == ["a", "b", "c"]


async def test_q13_order_is_first_in_first_out_also_inside_a_batch(queue: Queue):
    expected = [f"n{(n * 7) % 100}" for n in range(100)]
    await queue.add([Add(named(name)) for name in expected])
    assert await names(queue, 100) == expected


async def test_q13_a_closed_queue_wakes_who_waits(queue: Queue):
    waiting = asyncio.create_task(queue.take(1, wait=timedelta(seconds=30)))
    await asyncio.sleep(0.05)  # it begins to wait
    await queue.aclose()
    with pytest.raises(QueueClosedError):
        await asyncio.wait_for(waiting, 15)
    with pytest.raises(QueueClosedError):
        await queue.take(1)


async def test_q13_a_waiter_gets_what_is_added_and_what_becomes_due(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.workqueue.redis.POLL", 60)  # it has to be notified
    waiting = asyncio.create_task(queue.take(1, wait=timedelta(seconds=10)))
    await asyncio.sleep(0.05)  # it begins to wait
    started = time.monotonic()
    await queue.add([Add(A)])
    [lease] = await waiting
    waiting = asyncio.create_task(queue.take(1, wait=timedelta(seconds=10)))
    await queue.add_after(B, timedelta(milliseconds=20))
    assert [one.request for one in await waiting] == [B]
    waiting = asyncio.create_task(queue.take(1, wait=timedelta(seconds=10)))
    await queue.add([Add(A)])
    await queue.done([lease])
    assert [one.request for one in await waiting] == [A]
    assert time.monotonic() - started < 5, "it waited to the end"


async def test_q13_a_take_that_finds_nothing_returns_after_its_wait(queue: Queue):
    started = time.monotonic()
    assert await queue.take(1, wait=timedelta(milliseconds=50)) == []
    assert 0.04 < time.monotonic() - started < 5


async def test_q13_nothing_is_stuck_in_processing_after_its_owner_died(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A)])
    lease = await take_one(queue)
    [item] = await queue.processing()
    assert (item.request, item.fence) == (A, lease.fence)
    assert timedelta(0) < item.remaining <= LEASE
    await rig.advance(LEASE * 1.1)
    await reap_twice(rig)
    assert await queue.processing() == []


async def test_p10_a_retried_run_still_knows_its_trigger(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A, trigger=b"1/5")])
    lease = await take_one(queue)
    await queue.retry(lease)
    await queue.done([lease])
    await rig.advance(timedelta(seconds=1))
    assert (await take_one(queue)).trigger == b"1/5"


async def test_a_run_given_back_is_ready_at_once_and_counts_as_nothing(rig: Rig):
    queue = rig.queue
    await queue.add([Add(A, trigger=b"1/5"), Add(B)])
    lease = await take_one(queue)
    assert await queue.give_back([lease]) == []
    again = await take_one(queue)
    assert (again.request, again.attempt, again.trigger) == (A, 0, b"1/5")
    assert again.enqueued_at == lease.enqueued_at
    await queue.done([again])
    assert await names(queue) == ["b"]
    assert await rig.is_empty()


async def test_stats_count_by_cluster_and_priority(rig: Rig):
    queue = rig.queue
    assert (await queue.stats()).oldest is None
    await queue.add([Add(A), Add(B, Priority.INITIAL), Add(named("d", cluster="c2"))])
    await queue.add_after(C, timedelta(seconds=9))
    lease = await take_one(queue)
    stats = await queue.stats()
    left = {("c1", Priority.LIVE): 1, ("c1", Priority.INITIAL): 1, ("c2", Priority.LIVE): 1}
    del left[lease.request.cluster, lease.priority]
    assert stats.depth == left
    assert (stats.processing, stats.delayed, stats.quarantined) == (1, 1, 0)
    assert stats.oldest is not None


async def test_a_request_of_another_controller_is_refused(queue: Queue):
    with pytest.raises(ValueError, match="belongs to other"):
        await queue.add([Add(named("a", controller="other"))])


async def test_names_of_any_form_come_back_as_they_were(queue: Queue):
    odd = ["a b", "*", ">", "ä", "x:y", "%2F", "\x01", "a.b|c"]
    await queue.add([Add(named(name)) for name in odd])
    assert sorted(await names(queue)) == sorted(odd)
