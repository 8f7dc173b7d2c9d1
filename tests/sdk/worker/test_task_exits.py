"""`sys.exit` in a task of a reconcile function ends that task, and no process (R8)."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.intake.mapping import call_map
from fleetbus.reconcile import Request
from fleetbus.run.current import Run, running
from fleetbus.worker.loop_guard import ExitInTask, contain_exits
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, SECOND, Notes, working


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


SECRET = "S3CRET"


async def leave() -> None:
    await asyncio.sleep(0)
    sys.exit(f"password={SECRET}")


async def test_r8_an_exit_in_a_task_of_a_run_is_reported_and_retried_and_the_others_go_on(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(request: Request) -> None:
        if request == FIRST and notes.runs(FIRST) == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(leave(), name="mine")

    notes = Notes(act)
    with capture_logs() as lines:
        async with contain_exits(), working(queue, valkey_url, notes):
            await queue.add([Add(FIRST), Add(SECOND)])
            await eventually(lambda: set(notes.finished) == {FIRST, SECOND})
    assert notes.runs(FIRST) == 2
    logged = [line for line in lines if line["event"] in ("task_exited", "reconcile_failed")]
    assert [line["event"] for line in logged] == ["task_exited", "reconcile_failed"]
    assert logged[0]["task"] == "mine"
    assert "in leave" in logged[0]["exception"]
    assert SECRET not in str(logged)


async def interrupt() -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [leave, interrupt])
async def test_r8_a_task_that_nobody_awaits_ends_no_loop(
    end: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with capture_logs() as lines, running(Run(FIRST)):
        async with contain_exits():
            task = asyncio.create_task(end())
            await asyncio.wait([task])
    assert [line["event"] for line in lines] == ["task_exited"]
    assert isinstance(task.exception(), ExitInTask)


@pytest.mark.parametrize("end", [leave, interrupt])
async def test_r8_a_task_of_a_map_or_a_predicate_ends_no_loop(
    end: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    tasks: list[asyncio.Task[None]] = []

    def start(*_: object) -> bool:
        tasks.append(asyncio.create_task(end()))
        return True

    async def to_requests(*_: object) -> list[Request]:
        start()
        return []

    controller = Controller("copier")
    controller.watch("v1/pods", map=to_requests)
    controller.watch("v1/pods", predicate=start, clusters=start)
    watches = controller.watches
    with capture_logs() as lines:
        async with contain_exits():
            fleet: Any = None
            assert await call_map(watches[0], {}, FIRST, fleet, controller) == []
            assert watches[1].passes(None, {})
            assert watches[1].clusters.decide(
                "eu1", ClusterInfo(name="eu1", provider="test", config=None)
            )
            await asyncio.wait(tasks)
    assert [line["event"] for line in lines] == ["task_exited"] * 3
    assert all(isinstance(task.exception(), ExitInTask) for task in tasks)


async def test_r8_a_map_whose_own_task_exits_has_failed_like_one_that_raises() -> None:
    async def to_requests(*_: object) -> list[Request]:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
        return []

    controller = Controller("copier")
    controller.watch("v1/pods", map=to_requests)
    async with contain_exits():
        fleet: Any = None
        with pytest.raises(ExceptionGroup) as failed:
            await call_map(controller.watches[0], {}, FIRST, fleet, controller)
    assert failed.group_contains(ExitInTask)


async def test_a_task_of_a_run_is_else_like_any_other() -> None:
    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def fail() -> None:
        raise ValueError("boom")

    async def catch() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "caught"
        return ""

    with running(Run(FIRST)):
        async with contain_exits():
            assert await asyncio.gather(answer(1), answer(2)) == [1, 2]
            with pytest.raises(ValueError, match="boom"):
                await asyncio.create_task(fail())
            stopped = asyncio.create_task(catch())
            await asyncio.sleep(0)
            stopped.cancel()
            assert await stopped == "caught"
            assert "catch" in repr(stopped)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                unbegun = asyncio.create_task(answer(3))
                unbegun.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await unbegun
                del unbegun
                gc.collect()
            inner: Any = asyncio.create_task(answer(4), name="named", context=None)
            assert (await inner, inner.get_name()) == (4, "named")


async def test_only_tasks_of_runs_are_touched_and_the_loop_gets_its_own_way_back() -> None:
    types: list[str] = []

    def make(loop: Any, work: Any, **options: Any) -> Any:
        types.append(type(work).__name__)
        return asyncio.Task(work, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(make)
    try:
        async with contain_exits():
            await asyncio.create_task(asyncio.sleep(0))
            with running(Run(FIRST)):
                await asyncio.create_task(asyncio.sleep(0))
        assert types == ["coroutine", "_Contained"]
        assert loop.get_task_factory() is make
    finally:
        loop.set_task_factory(None)
