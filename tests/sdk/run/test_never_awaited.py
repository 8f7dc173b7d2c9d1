"""A call without `await` does nothing: the run that made it has failed, and the line is named."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
import timeit
import weakref
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import NeverAwaited
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import KubeClient
from fleetbus.reconcile import Request
from fleetbus.run.awaited import call_with_awaits, must_be_awaited, require_awaited
from fleetbus.run.current import Run, running
from fleetbus.run.in_thread import as_async
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, Notes, working
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class Service:
    """Something with methods as the SDK has them."""

    def __init__(self) -> None:
        self.written: list[str] = []

    @must_be_awaited
    async def write(self, text: str) -> str:
        await asyncio.sleep(0)
        self.written.append(text)
        return text


@pytest.fixture
def service() -> Service:
    return Service()


def a_run() -> Run:
    return Run(Request("copier", "eu1", "prod", "web"))


async def test_a_call_that_nobody_awaits_is_refused_by_its_line(service: Service):
    with running(a_run()) as run:
        _ = service.write("lost")
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        await service.write("kept")
    with pytest.raises(NeverAwaited) as caught:
        require_awaited(run.calls)
    assert f"Service.write was called without await at {__file__}:{line}" in str(caught.value)
    assert service.written == ["kept"]
    require_awaited(run.calls)  # reported once


async def test_a_call_keeps_no_argument_alive_until_the_collector_runs(service: Service):
    class Text(str):  # noqa: SLOT000
        """A string that can be referred to weakly."""

    async def write() -> weakref.ref[Text]:
        text = Text("spec")
        await service.write(text)
        service.written.clear()
        return weakref.ref(text)

    gc.disable()
    try:
        with running(a_run()):
            assert (await write())() is None
    finally:
        gc.enable()


def use_index(obj: Any) -> None:
    obj["spec"]


def use_attribute(obj: Any) -> None:
    obj.get("spec")


def use_loop(obj: Any) -> None:
    list(obj)


@pytest.mark.parametrize("use", [use_index, use_attribute, use_loop])
async def test_r8_a_coroutine_that_is_used_as_its_result_is_reported_by_the_line_of_the_call(
    service: Service, use: Callable[[Any], None]
):
    async def reconcile() -> None:
        use(service.write("lost"))

    with running(a_run()) as run, pytest.raises(NeverAwaited) as caught:
        await call_with_awaits(reconcile(), run.calls)
    line = reconcile.__code__.co_firstlineno + 1
    assert f"Service.write was called without await at {__file__}:{line}" in str(caught.value)


@pytest.mark.parametrize("error", [TypeError("of another kind"), ValueError("coroutine")])
async def test_another_error_stays_what_it_is(service: Service, error: Exception):
    async def reconcile() -> None:
        service.write("lost").close()
        raise error

    with running(a_run()) as run, pytest.raises(type(error), match=str(error)):
        await call_with_awaits(reconcile(), run.calls)


async def test_awaited_gathered_and_scheduled_calls_are_none(service: Service):
    with running(a_run()) as run:
        await asyncio.gather(service.write("a"), service.write("b"))
        assert await asyncio.wait_for(service.write("c"), 5) == "c"
        async with asyncio.TaskGroup() as group:
            group.create_task(service.write("d"))
        waiting = asyncio.create_task(service.write("e"))
        require_awaited(run.calls)
    await waiting
    assert service.written == ["a", "b", "c", "d", "e"]


async def test_a_long_run_keeps_few_of_its_calls(service: Service):
    with running(a_run()) as run:
        _ = service.write("lost")
        for number in range(500):
            await service.write(str(number))
        assert len(run.calls) <= 64
    with pytest.raises(NeverAwaited):
        require_awaited(run.calls)


async def test_very_many_calls_for_one_gather_cost_no_more_each(service: Service):
    def made(number: int) -> float:
        with running(a_run()):
            began = time.thread_time()  # of this thread: the machine may be busy
            calls = [service.write("x") for _ in range(number)]
            took = time.thread_time() - began
        for call in calls:
            call.close()
        return took / number

    many, few = (min(made(number) for _ in range(5)) for number in (5_000, 60))
    assert many < 10 * few


async def test_outside_of_a_run_nothing_is_noted(service: Service):
    assert await service.write("a") == "a"


@each_row(
    "method",
    [
        *(Cluster.get, Cluster.list, Cluster.create, Cluster.update, Cluster.patch),
        *(Cluster.patch_status, Cluster.add_finalizer, Cluster.remove_finalizer),
        *(Cluster.apply, Cluster.delete, Cluster.event, Cluster.get_deleted, Cluster.freshness),
        *(Fleet.get_all, Fleet.list, Fleet.freshness),
        *(KubeClient.get, KubeClient.list, KubeClient.create, KubeClient.update),
        *(KubeClient.patch, KubeClient.apply, KubeClient.delete, KubeClient.update_status),
    ],
)
def test_every_call_of_a_fleet_is_noted(method: Any):
    assert inspect.unwrap(method) is not method


async def test_a_plain_function_that_forgets_to_wait_is_refused_too(service: Service):
    def reconcile(_request: Request, _fleet: Fleet) -> None:
        _ = service.write("lost")

    call = as_async(reconcile, threads=1, name="plain")
    with running(a_run()) as run:
        await call(run.request, cast("Fleet", None))
    with pytest.raises(NeverAwaited, match=r"fleet\.wait\(…\)"):
        require_awaited(run.calls)


def test_a_note_costs_a_few_microseconds(service: Service):
    def cost() -> float:
        def call() -> None:
            work = service.write("x")
            work.close()

        return timeit.timeit(call, number=2_000) / 2_000

    with running(a_run()):
        assert min(cost() for _ in range(5)) < 50e-6


# --- in a worker ------------------------------------------------------------------------------


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


async def test_r8_a_forgotten_await_fails_the_run_and_the_log_names_the_line(
    queue: RedisQueue, redis: Redis, valkey_url: str, service: Service
):
    async def act(request: Request) -> None:
        if notes.runs(request) == 1:
            _ = service.write("lost")
        else:
            await service.write("done")

    notes = Notes(act)
    with capture_logs() as logs:
        async with working(queue, valkey_url, notes, record_on=redis):
            await queue.add([Add(FIRST)])
            await eventually(lambda: service.written == ["done"])
    (logged,) = [entry for entry in logs if entry["event"] == "reconcile_failed"]
    assert f"called without await at {__file__}:" in str(logged["error"])
