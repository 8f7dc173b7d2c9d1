"""Tests of the requests of a process to one cluster (rule D11)."""

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.errors import TooManyRequests
from fleetbus.kube.connection.liveness import Liveness
from fleetbus.kube.connection.request_limiter import RequestLimiter
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets.limits import Turn, Turns
from fleetbus_emulator.apiserver import Delay, Fail
from support.eventually import eventually, never, stays
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

MAPS = "v1/configmaps"
ALIVE = Liveness()
ALIVE.answered_at = float("inf")


async def waits(
    limiter: RequestLimiter, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Return how long each of some requests that come at once is delayed."""
    delays: list[float] = []

    async def note(seconds: float) -> None:
        delays.append(round(seconds, 3))

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", note)
        for _ in range(count):
            await limiter.admit()
    return delays


async def test_d11_requests_beyond_the_burst_are_spread_over_time(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    limiter = RequestLimiter(qps=100, burst=3, now=lambda: now[0])
    assert await waits(limiter, 5, monkeypatch) == [0.01, 0.02]
    now[0] += 0.03  # the two that waited, and one more
    assert await waits(limiter, 2, monkeypatch) == [0.01]
    now[0] += 1000  # no more is saved than the burst
    assert await waits(limiter, 4, monkeypatch) == [0.01]


async def test_d11_nothing_is_sent_before_retry_after_is_over():
    now = [0.0]
    limiter = RequestLimiter(qps=100, burst=3, now=lambda: now[0])
    limiter.pause(timedelta(seconds=7))
    limiter.pause(timedelta(seconds=1))
    now[0] = 6.9
    with pytest.raises(TooManyRequests) as caught:
        await limiter.admit()
    assert caught.value.retry_after.total_seconds() == pytest.approx(0.1)
    now[0] = 7
    await limiter.admit()


def place(rig: Rig, name: str, *clusters: str, objects: int = 1) -> None:
    metadata = [{"name": f"{name}-{n}", "namespace": "default"} for n in range(objects)]
    templates = [
        {**copy.deepcopy(CONFIG_MAP), "metadata": each_metadata} for each_metadata in metadata
    ]
    placement = {"clusters": [{"name": cluster} for cluster in clusters]}
    rig.create(name, templates=templates, placement=placement)


async def test_d11_a_429_delays_every_request_to_its_cluster_and_to_no_other(rig: Rig):
    place(rig, "x", "t1", "t2")
    place(rig, "y", "t1", "t2")
    rig.clusters["t1"].faults.add(
        Fail(429, retry_after=timedelta(seconds=30)), verb="patch", count=1
    )
    await rig.reconcile("x")
    assert rig.states("x") == {"t1": "Waiting/Throttled", "t2": "Applied"}
    count = len(rig.clusters["t1"].requests)
    await rig.reconcile("y")
    assert rig.entry("t1", "y")["reason"] == "Throttled"
    assert rig.states("y")["t2"] == "Applied"
    assert len(rig.clusters["t1"].requests) == count


async def test_d11_the_hub_is_not_slowed_down_and_members_are(rig: Rig):
    place(rig, "x", "t1", HUB)
    await rig.reconcile("x")
    assert rig.fleet.cluster("t1").live.limiter
    assert rig.fleet.cluster(HUB).live.limiter is None


async def test_d11_all_rounds_together_work_on_so_many_objects_of_a_cluster(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    limits = rig.distributor.executor.limits
    for name, value in {"_qps": 1000, "_burst": 1000, "_in_flight": 3}.items():
        monkeypatch.setattr(limits, name, value)
    rig.clusters["t1"].faults.add(Delay(timedelta(milliseconds=50)), verb="patch")
    client = rig.fleet.cluster("t1").live
    really, now, most = client.apply, 0, 0

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await really(*arguments, **options)
        finally:
            now -= 1

    monkeypatch.setattr(client, "apply", counted)
    for name in ("x", "y"):
        place(rig, name, "t1", objects=8)
    await asyncio.gather(rig.reconcile("x"), rig.reconcile("y"))
    assert most == 3
    assert len([one for _, one in rig.clusters["t1"].names(MAPS) if "-" in one]) >= 16


@pytest.mark.slow
async def test_d11_a_cluster_that_waits_for_its_turn_is_not_taken_to_hang(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    limits = rig.distributor.executor.limits
    monkeypatch.setattr(limits, "turns", Turns(at_once=1))
    monkeypatch.setattr("fleetbus_distributor.rounds.execute.SILENT_ALONE", timedelta(seconds=1))
    taken = await limits.turns.take(ALIVE)
    place(rig, "x", "t1", "t2")
    round_ = asyncio.create_task(rig.reconcile("x"))
    await asyncio.sleep(2)  # longer than one that hangs is waited for
    taken.end()
    await round_
    assert set(rig.states("x").values()) == {"Applied"}


async def test_d11_few_objects_begin_in_one_turn_of_the_event_loop_and_a_cancelled_one_takes_none():
    turns, begun = Turns(per_turn=2), list[int]()

    async def begin(number: int) -> None:
        turn = await turns.take(ALIVE)
        begun.append(number)
        turn.end()

    tasks = [asyncio.create_task(begin(number)) for number in range(7)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    counts: list[int] = []
    while not all(task.done() for task in tasks):
        before = len(begun)
        await asyncio.sleep(0)
        counts.append(len(begun) - before)
    assert max(counts) == 2
    assert begun == [0, 1, 3, 4, 5, 6]


async def test_d11_few_objects_are_under_way_and_a_server_that_hangs_takes_no_turn_from_others():
    turns = Turns(at_once=2, silent=timedelta(milliseconds=100))
    taken: list[Turn] = []

    async def begin() -> None:
        taken.append(await turns.take(Liveness()))

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(begin())
        await eventually(lambda: len(taken) == 2)
        await stays(2, lambda: len(taken), timedelta(seconds=0.04))
        assert turns.are_scarce
        taken[0].end()
        taken[0].end()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(taken) == 3  # at once: whoever ends has no need of its turn
        await eventually(lambda: len(taken) == 6)
    for turn in taken:
        turn.end()
    async with asyncio.timeout(5):
        again = [await turns.take(ALIVE), await turns.take(ALIVE)]  # none has got lost
    third = asyncio.create_task(turns.take(ALIVE))
    await never(third.done, timedelta(seconds=0.02))  # nor was one given back twice
    again[0].end()
    await third
    assert not turns.are_scarce


async def test_d11_a_server_that_is_slow_and_answers_keeps_its_turn():
    turns = Turns(at_once=1, silent=timedelta(milliseconds=50))
    slow = Liveness()
    await turns.take(slow)
    waiting = asyncio.create_task(turns.take(ALIVE))
    for _ in range(20):
        slow.note()
        await asyncio.sleep(0.01)  # the pace of its answers
    assert not waiting.done()
    await asyncio.wait_for(waiting, 5)  # once it is silent


async def test_d11_the_more_servers_are_silent_the_longer_they_are_waited_for():
    """All of them are slow together where this machine is, and more work would not help."""
    turns = Turns(at_once=1, silent=timedelta(milliseconds=1))
    first = turns.patience
    for _ in range(10):
        turns.release(is_silent=True)
    assert 2 * first < turns.patience
    for _ in range(100):
        turns.release(is_silent=True)
    assert turns.patience == 5
    for number in range(1000):
        turns.release(is_silent=number % 10 == 0)  # one of ten is dead
    assert turns.patience == first


async def test_d11_a_turn_that_comes_with_a_cancellation_is_given_to_the_next():
    turns = Turns(at_once=1)
    first = await turns.take(ALIVE)
    cancelled = asyncio.create_task(turns.take(ALIVE))
    await asyncio.sleep(0)
    first.end()
    await asyncio.sleep(0)  # its turn has come, and it has not run yet
    cancelled.cancel()
    async with asyncio.timeout(5):
        await turns.take(ALIVE)


def test_d11_the_limits_are_settings():
    settings = DistributorSettings()
    assert (settings.qps, settings.burst, settings.in_flight) == (100, 200, 20)
