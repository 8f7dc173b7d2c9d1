"""One bad cluster takes neither the slots nor the turns of the others (rule Q9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.errors import Unreachable
from fleetbus.testing import controller_test
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.rigs.worker import POLICY, Notes, is_empty, working
from support.stores.workqueue import named

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from fleetbus.fleet.fleet import Fleet
    from fleetbus.reconcile import Request

DEAD = [named(f"n{n}", cluster="dead") for n in range(9)]
CALM = [named(f"n{n}", cluster="calm") for n in range(9)]


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


def silence(cluster: str) -> Unreachable:
    error = Unreachable(0, "Unreachable", "no answer")
    error.cluster = cluster
    return error


async def add(queue: RedisQueue, requests: list[Request]) -> None:
    await queue.add([Add(request) for request in requests])


async def test_q9_a_cluster_that_hangs_leaves_slots_to_the_others(
    queue: RedisQueue, valkey_url: str
) -> None:
    answers = asyncio.Event()

    async def act(request: Request) -> None:
        if request.cluster == "dead":
            await answers.wait()

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=4, max_per_cluster=2):
        await add(queue, DEAD)
        await eventually(lambda: len(notes.running) == 2)
        await add(queue, CALM)
        await eventually(lambda: set(notes.finished) == set(CALM))
        assert {request.cluster for request in notes.running} == {"dead"}
        assert len(notes.running) == 2
        answers.set()
        await eventually(lambda: set(notes.finished) == {*CALM, *DEAD})
        await eventually(lambda: is_empty(queue))


async def test_q9_a_cluster_alone_has_all_slots_and_another_one_gets_its_share_when_it_comes(
    queue: RedisQueue, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.slots.ALONE", timedelta(milliseconds=100))
    busy = [named(f"n{n}", cluster="busy") for n in range(100)]
    beside: list[int] = []

    async def act(request: Request) -> None:
        if request.cluster == "calm":
            beside.append(
                sum(running_request.cluster == "busy" for running_request in notes.running)
            )
        await asyncio.sleep(0.01)  # a reconcile takes its time

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=4):
        await add(queue, busy)
        await eventually(lambda: notes.most == 4)
        await add(queue, CALM)
        await eventually(lambda: set(notes.finished) >= set(CALM))
        assert len(notes.finished) < len(busy)
        assert max(beside[4:]) <= 2


async def test_q9_a_cluster_that_does_not_answer_gets_probes_until_it_does(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    is_back = False

    async def act(request: Request) -> None:
        if request.cluster == "dead" and not is_back:
            raise silence("dead")

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=2):
        await add(queue, DEAD)

        async def is_open() -> bool:
            return [breaker.cluster for breaker in (await queue.stats()).breakers] == ["dead"]

        await eventually(is_open)
        failed = len(notes.started)
        await add(queue, CALM)
        await eventually(lambda: set(notes.finished) == set(CALM))
        tried = [request for request, _ in notes.started[failed:] if request.cluster == "dead"]
        assert len(tried) <= 2, "nothing but what had begun, and a probe"
        is_back = True
        await eventually(lambda: set(notes.finished) == {*CALM, *DEAD})
        await eventually(lambda: is_empty(queue))
    assert not await redis.exists("fleetbus:{q:copier}:outages", "fleetbus:{q:copier}:breakers")


async def test_q9_the_silence_of_another_cluster_opens_no_breaker(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(request: Request) -> None:
        if notes.runs(request) <= 2:
            raise silence("another")

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=2):
        await add(queue, CALM)
        await eventually(lambda: set(notes.finished) == set(CALM))
        assert not (await queue.stats()).breakers


async def test_q9_runs_that_take_all_their_time_open_the_breaker(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        await asyncio.sleep(60)  # until the timeout

    notes = Notes(act)
    limit = timedelta(milliseconds=50)
    async with working(queue, valkey_url, notes, concurrency=8, timeout=limit):
        await add(queue, DEAD)

        async def is_open() -> bool:
            return bool((await queue.stats()).breakers)

        await eventually(is_open)


@pytest.mark.slow
async def test_q9_a_driven_clock_waits_for_the_probes_of_a_silent_cluster(valkey_url: str) -> None:
    controller = Controller("copier")
    controller.watch("v1/configmaps", clusters=["a"], namespaces=["default"])
    silences = iter(range(12))

    @controller.reconcile
    async def act(request: Request, _fleet: Fleet) -> None:  # pyright: ignore[reportUnusedFunction]
        if next(silences, None) is not None:
            raise silence(request.cluster)

    names = {f"map{number}" for number in range(8)}
    async with controller_test(controller, store=valkey_url) as t:
        for name in names:
            obj = {"metadata": {"name": name, "namespace": "default"}}
            t.clusters["a"].create("v1/configmaps", obj)
        await t.run_until_idle()
        assert names <= {run.request.name for run in t.requests if run.outcome == "done"}
