"""Weights, capacity, breakers (rule Q9) and ageing (rule Q10), for both queues."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.workqueue import Add, Breaker, Priority, QueuePolicy
from support.eventually import never
from support.stores.workqueue import Rig, named

if TYPE_CHECKING:
    from fleetbus.reconcile import Request
    from fleetbus.workqueue import Lease, Queue

POLICY = QueuePolicy()
LEASE = POLICY.lease
LONG = timedelta(seconds=31)
"""Longer than any pause of a breaker."""


def of(cluster: str, count: int, prefix: str = "n") -> list[Request]:
    return [named(f"{prefix}{n:03}", cluster=cluster) for n in range(count)]


async def fill(queue: Queue, *requests: Request, priority: Priority = Priority.LIVE) -> None:
    await queue.add([Add(request, priority) for request in requests])


def clusters(leases: list[Lease]) -> Counter[str]:
    return Counter(lease.request.cluster for lease in leases)


async def serve(queue: Queue, count: int, **limits: Any) -> Counter[str]:
    """Take one by one, and end each at once."""
    served: Counter[str] = Counter()
    for _ in range(count):
        leases = await queue.take(1, **limits)
        served += clusters(leases)
        await queue.done(leases)
    return served


async def fail(queue: Queue, leases: list[Lease]) -> None:
    for lease in leases:
        await queue.retry(lease, unreachable=True)
    await queue.done(leases)


async def break_cluster(queue: Queue, cluster: str = "dead") -> None:
    """As many failures in a row as open the breaker."""
    await fill(queue, *of(cluster, POLICY.breaker, "broken"))
    leases = await queue.take(POLICY.breaker, capacity={"flood": 0})
    assert clusters(leases) == {cluster: POLICY.breaker}
    await fail(queue, leases)


async def breakers(queue: Queue) -> list[Breaker]:
    return list((await queue.stats()).breakers)


async def finish(rig: Rig) -> None:
    """Run everything to its end; nothing may be left."""
    queue = rig.queue
    for _ in range(200):
        await rig.advance(LONG)
        for lease in (leases := await queue.take(500)):
            await queue.forget(lease)
        await queue.done(leases)
        if not leases and await rig.is_empty():
            return
    raise AssertionError(await queue.stats())


# --- weights --------------------------------------------------------------------------------------


async def test_q9_a_cluster_has_turns_by_its_weight(queue: Queue):
    queue.weigh({"big": 4, "small": 0.5})
    await fill(queue, *of("big", 200), *of("plain", 200), *of("small", 200))
    served = clusters(await queue.take(110))
    assert 78 <= served["big"] <= 82, served
    assert 18 <= served["plain"] <= 21, served
    assert 8 <= served["small"] <= 11, served


async def test_q9_a_weight_holds_for_a_cluster_that_comes_back_each_time(queue: Queue):
    queue.weigh({"big": 5})
    await fill(queue, *of("plain", 100))
    served: Counter[str] = Counter()
    for n in range(60):
        await fill(queue, named(f"b{n}", cluster="big"))
        served += await serve(queue, 1)
    assert 45 <= served["big"] <= 52
    assert served["plain"] >= 8


async def test_q9_weights_may_change_while_items_wait(queue: Queue):
    await fill(queue, *of("a", 100), *of("b", 100))
    assert 10 <= clusters(await queue.take(20))["a"] <= 11
    queue.weigh({"a": 3})
    assert 28 <= clusters(await queue.take(40))["a"] <= 32


# --- capacity -------------------------------------------------------------------------------------


async def test_q9_a_take_gets_no_more_of_a_cluster_than_it_has_capacity_for(queue: Queue):
    await fill(queue, *of("flood", 50), *of("calm", 2))
    leases = await queue.take(10, default_capacity=3)
    assert clusters(leases) == {"flood": 3, "calm": 2}
    leases = await queue.take(10, capacity={"flood": 1}, default_capacity=3)
    assert clusters(leases) == {"flood": 1}
    assert await queue.take(10, capacity={"flood": 0}, default_capacity=3) == []
    assert (await queue.stats()).depth == {("flood", Priority.LIVE): 46}


async def test_q9_a_lower_band_goes_on_while_a_higher_one_has_no_room(queue: Queue):
    await fill(queue, *of("flood", 5))
    await fill(queue, *of("calm", 2), priority=Priority.INITIAL)
    assert clusters(await queue.take(5, capacity={"flood": 0})) == {"calm": 2}


async def test_q9_turns_without_capacity_are_lost_and_not_saved_up(queue: Queue):
    await fill(queue, *of("full", 100), *of("busy", 300))
    await serve(queue, 100, capacity={"full": 0})
    # One that joins now stands behind both, and neither has a hundred turns in hand.
    await fill(queue, *of("late", 100))
    served = await serve(queue, 30)
    assert all(9 <= served[name] <= 11 for name in ("full", "busy", "late")), served


async def test_q9_what_one_taker_has_no_capacity_for_another_one_gets(queue: Queue):
    await fill(queue, *of("flood", 4))
    assert await queue.take(4, capacity={"flood": 0}) == []
    assert len(await queue.take(4, default_capacity=4)) == 4


async def test_q9_a_default_capacity_of_zero_is_refused(queue: Queue):
    with pytest.raises(ValueError, match="default_capacity must be positive"):
        await queue.take(1, default_capacity=0)


async def test_q9_a_taker_without_capacity_is_woken_by_another_cluster(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.workqueue.redis.POLL", 60)  # it has to be notified
    await fill(queue, *of("flood", 9))
    await queue.take(1)
    for name in ("calm", "quiet"):
        waiting = asyncio.create_task(
            queue.take(4, wait=timedelta(seconds=10), capacity={"flood": 0})
        )
        await asyncio.sleep(0.05)  # it begins to wait
        started = time.monotonic()
        await fill(queue, named("a", cluster=name))
        assert clusters(await waiting) == {name: 1}
        assert time.monotonic() - started < 5, "it waited to the end"


async def test_q9_a_taker_without_capacity_is_woken_when_its_own_run_ends(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.workqueue.redis.POLL", 60)
    capacity = {"flood": 1}
    await fill(queue, *of("flood", 9))
    mine = await queue.take(4, capacity=capacity)
    capacity["flood"] = 0
    waiting = asyncio.create_task(queue.take(4, wait=timedelta(seconds=10), capacity=capacity))
    await asyncio.sleep(0.05)  # it begins to wait
    started = time.monotonic()
    capacity["flood"] = 1
    await queue.done(mine)
    assert clusters(await waiting) == {"flood": 1}
    assert time.monotonic() - started < 5, "it waited to the end"


# --- breakers -------------------------------------------------------------------------------------


async def test_q9_failures_in_a_row_open_the_breaker_of_one_cluster(queue: Queue):
    await break_cluster(queue)
    [breaker] = await breakers(queue)
    assert (breaker.cluster, breaker.failures, breaker.opened) == ("dead", 5, 1)
    assert not breaker.is_probing
    assert timedelta(milliseconds=700) < breaker.remaining <= timedelta(seconds=1)
    await fill(queue, *of("dead", 3), *of("calm", 2))
    assert clusters(await queue.take(10)) == {"calm": 2}
    stats = await queue.stats()
    assert stats.depth[("dead", Priority.LIVE)] == 3
    assert stats.ages.keys() == {"dead"}


async def test_q9_a_success_between_failures_keeps_the_breaker_closed(queue: Queue):
    for _ in range(3):
        await fill(queue, *of("shaky", 4), *of("shaky", 1, "good"))
        leases = await queue.take(5)
        await fail(queue, [lease for lease in leases if lease.request.name != "good000"])
        await queue.done([lease for lease in leases if lease.request.name == "good000"])
    assert await breakers(queue) == []


async def test_q9_failures_that_are_no_outage_open_nothing(queue: Queue):
    await fill(queue, *of("c1", 9))
    leases = await queue.take(9)
    for lease in leases:
        await queue.retry(lease)
    await queue.done(leases)
    assert await breakers(queue) == []


async def test_q9_one_probe_at_a_time_and_its_success_lets_all_items_back(rig: Rig):
    queue = rig.queue
    await break_cluster(queue)
    await fill(queue, *of("dead", 3))
    await rig.advance(timedelta(milliseconds=500))
    assert await queue.take(10) == []
    await rig.advance(timedelta(seconds=1))
    [probe] = await queue.take(10)
    assert probe.is_probe
    assert await queue.take(10) == []
    assert (await breakers(queue))[0].is_probing
    await queue.forget(probe)
    await queue.done([probe])
    assert await breakers(queue) == []
    back = await queue.take(20)
    assert len(back) == 7
    assert not any(lease.is_probe for lease in back)
    await fail(queue, back[:1])
    assert await breakers(queue) == []
    await queue.give_back(back[1:])
    await finish(rig)


async def test_q9_a_probe_that_fails_opens_the_breaker_for_longer_up_to_four_seconds(rig: Rig):
    queue = rig.queue
    await break_cluster(queue)
    await fill(queue, *of("dead", 20))
    for longest in (2, 4, 4, 4):
        await rig.advance(LONG)
        await fail(queue, await queue.take(10))
        [breaker] = await breakers(queue)
        assert 0.7 * longest < breaker.remaining.total_seconds() <= longest
    await finish(rig)


async def test_q9_an_outage_grows_no_pause_of_an_item_beyond_that_of_the_breaker(rig: Rig):
    queue = rig.queue
    await fill(queue, *of("dead", 1))
    longest = QueuePolicy().breaker_pause.limit
    for _ in range(20):  # after so many failures of its own it would wait for an hour
        await rig.advance(LONG)
        [lease] = await queue.take(10)
        assert await queue.retry(lease, unreachable=True) <= longest
        await queue.done([lease])
    await rig.advance(LONG)
    [lease] = await queue.take(10)
    assert await queue.retry(lease) > 10 * longest
    await queue.done([lease])
    await finish(rig)


async def test_q9_a_probe_that_was_answered_closes_the_breaker_on_trial(rig: Rig):
    queue = rig.queue
    await break_cluster(queue)
    await rig.advance(LONG)
    [probe] = await queue.take(10)
    await queue.retry(probe)
    await queue.done([probe])
    assert await breakers(queue) == []
    two = await queue.take(2)
    await fail(queue, two[:1])
    [breaker] = await breakers(queue)
    assert breaker.opened == 2
    await queue.give_back(two[1:])
    await finish(rig)


@pytest.mark.parametrize("end", ["given back", "its owner died"])
async def test_q9_a_probe_that_never_ended_makes_capacity_for_another(rig: Rig, end: str):
    queue = rig.queue
    await break_cluster(queue)
    await rig.advance(LONG)
    probes = await queue.take(10)
    if end == "given back":
        await queue.give_back(probes)
    else:
        await rig.advance(LEASE * 1.1)
        await queue.reap()
        await rig.advance(LEASE / 5)
        assert (await queue.reap()).recovered == 1
    [again] = await queue.take(10)
    assert again.is_probe
    await queue.give_back([again])
    await finish(rig)


async def test_q9_runs_from_before_neither_prolong_a_pause_nor_count_as_probes(rig: Rig):
    queue = rig.queue
    await fill(queue, *of("dead", 9))
    leases = await queue.take(9)
    await fail(queue, leases)
    [breaker] = await breakers(queue)
    assert (breaker.failures, breaker.opened) == (9, 1)
    assert breaker.remaining <= timedelta(seconds=1)
    await finish(rig)


async def test_q9_a_breaker_without_items_hands_the_next_one_out_as_a_probe(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.workqueue.redis.POLL", 60)
    queue = rig.queue
    [lease] = await lease_of_an_open_breaker(rig)
    await rig.advance(LONG)
    waiting = asyncio.create_task(queue.take(10, wait=timedelta(seconds=10)))
    await never(waiting.done)
    started = time.monotonic()
    await fill(queue, *of("dead", 3, "new"))
    [probe] = await waiting
    assert probe.is_probe
    assert time.monotonic() - started < 5, "it waited to the end"
    await queue.give_back([probe, lease])
    await finish(rig)


async def lease_of_an_open_breaker(rig: Rig) -> list[Lease]:
    """An open breaker, and nothing ready: its only key is processed, and fails again and again."""
    queue = rig.queue
    await fill(queue, named("only", cluster="dead"))
    leases = await queue.take(1)
    for _ in range(POLICY.breaker):
        await queue.retry(leases[0], unreachable=True)
    assert len(await breakers(queue)) == 1
    return leases


async def test_q9_a_taker_that_waits_is_woken_when_the_pause_is_over(rig: Rig):
    await break_cluster(rig.queue)
    started = time.monotonic()
    await rig.advance(timedelta(milliseconds=600))
    [probe] = await rig.queue.take(10, wait=timedelta(seconds=10))
    assert probe.is_probe
    assert time.monotonic() - started < 5


async def test_q9_a_taker_gets_no_more_probes_than_it_wants(rig: Rig):
    queue = rig.queue
    for name in ("dead1", "dead2", "dead3"):
        await break_cluster(queue, name)
    await rig.advance(LONG)
    assert await queue.take(10, probes=0) == []
    two = clusters(await queue.take(10, probes=2))
    assert two.total() == len(two) == 2
    [left] = {"dead1", "dead2", "dead3"} - two.keys()
    assert await queue.take(10, capacity={left: 0}) == []
    assert clusters(await queue.take(10)) == {left: 1}


async def test_q11_a_repeated_take_knows_its_probe(rig: Rig):
    await break_cluster(rig.queue)
    await rig.advance(LONG)
    await fill(rig.queue, named("a", cluster="calm"))
    first = await rig.queue.take(10, token="t")
    again = await rig.queue.take(10, token="t")
    assert {lease.request.cluster: lease.is_probe for lease in first} == {
        "dead": True,
        "calm": False,
    }
    assert sorted(lease.is_probe for lease in again) == [False, True]


async def test_q2_q9_capped_broken_and_quarantined_items_leave_nothing_behind(rig: Rig):
    queue = rig.queue
    queue.weigh({"dead": 3})
    await fill(queue, *of("flood", 20))
    for _ in range(3):  # one of its keys kills each owner
        await queue.take(1, default_capacity=1)
        await rig.advance(LEASE * 1.1)
        await queue.reap()
        await rig.advance(LEASE / 5)
        await queue.reap()
    await break_cluster(queue)
    await fill(queue, *of("dead", 20))
    stats = await queue.stats()
    assert stats.kept == {"flood": 1}
    assert stats.depth[("flood", Priority.LIVE)] == 19
    assert stats.depth[("dead", Priority.LIVE)] == 20
    await finish(rig)


# --- notes age ------------------------------------------------------------------------------------


async def test_q12_a_note_that_no_run_replaces_is_dropped_after_its_time(rig: Rig):
    queue = rig.queue
    await fill(queue, *of("c1", 2))
    leases = await queue.take(2)
    await queue.done(leases, {lease.request: b"note" for lease in leases})
    await rig.advance(timedelta(hours=23))
    await queue.reap()
    await fill(queue, leases[0].request)
    again = await queue.take(1)
    assert again[0].note == b"note"
    await queue.done(again, {again[0].request: b"newer"})
    await rig.advance(timedelta(hours=2))
    await queue.reap()
    assert not await rig.is_empty()
    await fill(queue, *of("c1", 2))
    last = await queue.take(2)
    assert sorted(lease.note for lease in last) == [b"", b"newer"]
    await queue.done(last)
    assert await rig.is_empty()


# --- ageing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [Priority.INITIAL, Priority.RETRY])
async def test_q10_the_oldest_low_key_waits_for_at_most_sixty_seconds_under_full_live_load(
    queue: Queue, low: Priority
):
    # A second of load is 10 runs here, and a backlog of 50 low keys; live keys never run out.
    await fill(queue, *of("c1", 50, "low"), priority=low)
    waited: list[int] = []
    for second in range(60):
        await fill(queue, *of("c1", 12, f"live{second}-"), *of("c2", 12, f"live{second}-"))
        leases = await queue.take(10)
        waited += [second for lease in leases if lease.priority is low]
        await queue.done(leases)
    assert len(waited) == 50
    assert waited[-1] <= 60
    assert (await queue.stats()).depth[("c1", Priority.LIVE)] > 50
