"""A controller's own back-off is kept by both queues, the host and the test harness (Q7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

import fleetbus
from fleetbus.testing import controller_test
from fleetbus.workqueue import Add, QueuePolicy, RedisQueue
from fleetbus.workqueue.items import read_item
from support.eventually import eventually
from support.rigs.fleet import Rig as FleetRig
from support.rows import each_row
from support.stores.workqueue import MemoryRig, RedisRig, Rig, named

MAPS = "v1/configmaps"
SLOW = fleetbus.Backoff(first=timedelta(seconds=40), factor=3, limit=timedelta(minutes=5))


@pytest.fixture(params=["redis", "memory"])
async def open_queue(
    request: pytest.FixtureRequest, redis: Redis
) -> AsyncGenerator[Callable[[QueuePolicy], Rig]]:
    rigs: list[Rig] = []

    def open_rig(policy: QueuePolicy) -> Rig:
        rig = RedisRig(redis, "copier", policy) if is_redis else MemoryRig("copier", policy)
        rigs.append(rig)
        return rig

    is_redis = request.param == "redis"
    yield open_rig
    for rig in rigs:
        await rig.queue.aclose()


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        (SLOW, [40, 120, 300, 300]),
        (fleetbus.Backoff(timedelta(seconds=7), factor=1), [7, 7, 7, 7]),
        (fleetbus.Backoff(timedelta(seconds=2), factor=1.5), [2, 3, 4.5, 6.75]),
        (fleetbus.Backoff(first=timedelta(seconds=900)), [900, 1000, 1000, 1000]),
        (fleetbus.Backoff(limit=timedelta(milliseconds=12)), [0.005, 0.01, 0.012, 0.012]),
    ],
)
async def test_q7_both_queues_keep_the_back_off_of_a_controller(
    open_queue: Callable[[QueuePolicy], Rig], backoff: fleetbus.Backoff, seconds: list[float]
) -> None:
    rig = open_queue(QueuePolicy().with_backoff(backoff))
    await rig.queue.add([Add(named("a"))])
    delays: list[float] = []
    for _ in seconds:
        [lease] = await rig.queue.take(1)
        delay = await rig.queue.retry(lease)
        delays.append(delay.total_seconds())
        await rig.queue.done([lease])
        before = delay * 0.75  # real time passes, too
        await rig.advance(before)
        if delay > timedelta(seconds=1):
            assert await rig.queue.take(1) == [], "not before its time"
        await rig.advance(delay - before)
    assert delays == seconds


def test_q7_a_policy_without_a_back_off_of_its_own_is_the_same_as_before() -> None:
    policy = QueuePolicy(reclaims=7)
    assert policy.with_backoff(None) is policy
    assert policy.with_backoff(SLOW) == QueuePolicy(reclaims=7, backoff=SLOW)


def failing(**options: Any) -> fleetbus.Controller:
    controller = fleetbus.Controller("failing", **options)
    controller.watch(MAPS, clusters=["a"], selector="app=x")

    @controller.reconcile
    async def fail(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        raise RuntimeError("no")

    return controller


CONFIG_MAP = {"metadata": {"name": "x", "labels": {"app": "x"}}}


async def test_q7_a_test_of_a_controller_keeps_its_back_off(valkey_url: str) -> None:
    at: list[float] = []
    controller = fleetbus.Controller("failing", backoff=SLOW)
    controller.watch(MAPS, clusters=["a"], selector="app=x")

    @controller.reconcile
    async def fail(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        at.append(t.now.timestamp())
        if len(at) < 4:
            raise RuntimeError("no")

    async with controller_test(controller, store=valkey_url) as t:
        t.clusters["a"].create(MAPS, CONFIG_MAP, "default")
        await t.run_until_idle()
    assert [round(then - at[0]) for then in at] == [0, 40, 160, 460]


async def test_q7_a_hosted_controller_keeps_its_back_off(
    open_rig: Callable[..., Awaitable[FleetRig]], redis: Redis
) -> None:
    rig = await open_rig("a")
    rig.clusters["a"].create(MAPS, CONFIG_MAP, "default")
    rig.start_reconciler(failing(backoff=SLOW))
    rig.start_watcher("a")
    request = fleetbus.Request("failing", "a", "default", "x")
    delays: list[timedelta] = []

    async def is_delayed() -> bool:
        delays[:] = [due] if (due := (await read_item(redis, request)).due_in) else []
        return bool(delays)

    await eventually(is_delayed, timedelta(seconds=20))
    assert timedelta(seconds=20) < delays[0] <= timedelta(seconds=40)
    queue = RedisQueue(redis, "failing")
    assert (await queue.stats()).failing == 1
    await queue.aclose()


@pytest.mark.parametrize("make", ["decorator", "children"])
def test_q7_every_kind_of_controller_takes_a_back_off(make: str) -> None:
    controller = (
        fleetbus.Decorator("notes", resource=MAPS, backoff=SLOW)
        if make == "decorator"
        else fleetbus.Children("maps", parents="v1/pods", children=MAPS, backoff=SLOW)
    )
    assert controller.backoff == SLOW
    assert failing().backoff is None


@each_row(
    ("options", "message"),
    [
        ({"first": 5}, "first must be a positive timedelta .*, not 5"),
        ({"first": timedelta()}, "first must be a positive timedelta"),
        ({"first": timedelta(seconds=-1)}, "first must be a positive timedelta"),
        ({"limit": "1h"}, "limit must be a positive timedelta .*, not '1h'"),
        ({"limit": timedelta(days=366)}, "limit must be a positive timedelta of at most a year"),
        ({"first": timedelta(hours=1)}, r"first=1:00:00 is longer than limit=0:16:40"),
        ({"factor": 0.5}, "factor must be a number of at least 1, not 0.5"),
        ({"factor": float("nan")}, "factor must be a number"),
        ({"factor": float("inf")}, "factor must be a number"),
        ({"factor": "2"}, "factor must be a number of at least 1, not '2'"),
        ({"factor": True}, "factor must be a number of at least 1, not True"),
    ],
)
def test_a_back_off_that_cannot_be_used_is_one_clear_line(options: Any, message: str) -> None:
    with pytest.raises(fleetbus.ConfigError, match=f"backoff: {message}"):
        fleetbus.Backoff(**options)
