"""A plain function as reconcile function: a thread, and slot and lease until it returns (R7)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.controller.controller import Controller
from fleetbus.errors import ClusterNotFound, ConfigError, RunStopped
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.run.current import current_run
from fleetbus.worker.worker import Patience
from fleetbus.workqueue import Add, RedisQueue
from fleetbus.workqueue.queue import Lease
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, SECOND, counted, is_empty, working
from support.stores.workqueue import named


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


class Plain:
    """A plain reconcile function that takes notes; `act` is what it does, in its thread."""

    def __init__(self, act: Callable[[Request, Fleet], Any] | None = None) -> None:
        self.act = act
        self.started: list[Request] = []
        self.finished: list[Request] = []
        self.threads: set[str] = set()

    def __call__(self, request: Request, fleet: Fleet) -> Any:
        self.started.append(request)
        self.threads.add(threading.current_thread().name)
        try:
            return self.act(request, fleet) if self.act else None
        finally:
            self.finished.append(request)


async def test_r7_a_plain_function_runs_in_a_thread_and_belongs_to_its_run(
    queue: RedisQueue, valkey_url: str
) -> None:
    calls: list[Any] = []
    plain = Plain(lambda request, _fleet: calls.append((current_run(), request)))
    before = counted("done")
    async with working(queue, valkey_url, plain):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted("done") == before + 1)
    ((run, request),) = calls
    assert run is not None
    assert run.request == request == FIRST
    assert threading.main_thread().name not in plain.threads


async def test_r7_a_plain_function_reaches_the_clusters_through_wait(
    queue: RedisQueue, valkey_url: str
) -> None:
    answers: list[object] = []

    def act(_request: Request, fleet: Fleet) -> None:
        try:
            fleet.wait(fleet.get_all("v1/pods", "ns", "a"))
            answers.append(fleet.wait(_answer(7)))
            fleet.wait(_fail())
        except ClusterNotFound as e:
            answers.append(str(e))

    async with working(queue, valkey_url, Plain(act)):
        await queue.add([Add(FIRST)])
        await eventually(lambda: answers == [7, "asked for it"])


async def _answer(value: int) -> int:
    return value


async def _fail() -> None:
    raise ClusterNotFound("asked for it")


async def test_r7_wait_elsewhere_says_what_it_is_for(queue: RedisQueue, valkey_url: str) -> None:
    outcomes: list[object] = []

    async def act(_request: Request, fleet: Fleet) -> None:
        with pytest.raises(RuntimeError, match="`await` it"):
            fleet.wait(_answer(7))
        outcomes.append("stopped")

    async with working(queue, valkey_url, act):
        await queue.add([Add(FIRST)])
        await eventually(lambda: outcomes == ["stopped"])


async def test_r7_a_late_plain_function_keeps_its_slot_and_lease_until_it_returns(
    queue: RedisQueue, valkey_url: str
) -> None:
    may_return = threading.Event()

    def act(request: Request, _fleet: Fleet) -> None:
        if request == FIRST:
            may_return.wait(10)

    plain = Plain(act)
    before = counted("retried")
    options: dict[str, Any] = {"concurrency": 1, "timeout": timedelta(milliseconds=50)}
    async with working(queue, valkey_url, plain, **options):
        await queue.add([Add(FIRST)])
        await eventually(lambda: plain.started == [FIRST])
        await queue.add([Add(SECOND)])
        time_is_over = time.monotonic() + 0.2
        await eventually(lambda: time.monotonic() > time_is_over)
        assert plain.started == [FIRST]
        assert [lease.request for lease in await queue.processing()] == [FIRST]
        may_return.set()
        await eventually(lambda: SECOND in plain.finished)
        await eventually(lambda: counted("retried") == before + 1)


async def test_r7_a_plain_function_that_waits_is_reported_that_its_time_is_over(
    queue: RedisQueue, valkey_url: str
) -> None:
    errors: list[str] = []

    def act(_request: Request, fleet: Fleet) -> None:
        if errors:
            return
        for _ in range(2):
            try:
                fleet.wait(_for_ever())
            except RunStopped as e:
                errors.append(str(e))

    before = counted("retried")
    async with working(queue, valkey_url, Plain(act), timeout=timedelta(milliseconds=50)):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted("retried") == before + 1)
        await eventually(lambda: is_empty(queue))
    assert errors == [
        "this run was stopped while it waited",
        "this run was stopped; nothing was sent",
    ]


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_r7_a_plain_function_that_never_returns_frees_no_slot_and_ends_the_process(
    queue: RedisQueue, valkey_url: str
) -> None:
    """In production `on_stuck` of the heartbeat ends the process; here it releases the thread."""
    may_return, stuck = threading.Event(), list[Request]()

    def end(lease: Lease) -> None:
        stuck.append(lease.request)
        may_return.set()

    plain = Plain(lambda _request, _fleet: may_return.wait(10))
    options: dict[str, Any] = {
        "concurrency": 1,
        "timeout": timedelta(milliseconds=50),
        "patience": Patience(grace=timedelta(milliseconds=100)),
    }
    async with working(queue, valkey_url, plain, on_stuck=end, **options):
        await queue.add([Add(FIRST)])
        await eventually(lambda: plain.started == [FIRST])
        await queue.add([Add(SECOND)])
        await eventually(lambda: stuck == [FIRST])
        await eventually(lambda: SECOND in plain.started)
    assert plain.finished[0] == FIRST


async def test_r7_as_many_plain_functions_run_at_a_time_as_there_are_slots(
    queue: RedisQueue, valkey_url: str
) -> None:
    all_in = threading.Barrier(12)
    plain = Plain(lambda _request, _fleet: all_in.wait(10))
    async with working(queue, valkey_url, plain, concurrency=12):
        await queue.add([Add(named(f"n{index}")) for index in range(12)])
        await eventually(lambda: len(plain.finished) == 12)
    assert not all_in.broken


async def test_r7_a_decorator_may_hide_that_a_function_is_async(
    queue: RedisQueue, valkey_url: str
) -> None:
    before = counted("done")
    async with working(queue, valkey_url, Plain(lambda _request, _fleet: _answer_nothing())):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted("done") == before + 1)


async def _answer_nothing() -> None:
    return None


async def test_r8_whatever_a_plain_function_raises_is_retried(
    queue: RedisQueue, valkey_url: str
) -> None:
    kinds = (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit)
    left = {named(kind.__name__.lower()): [kind] for kind in kinds}

    def act(request: Request, _fleet: Fleet) -> None:
        if left[request]:
            raise left[request].pop()

    done, retried = counted("done"), counted("retried")
    async with working(queue, valkey_url, act):
        await queue.add([Add(request) for request in left])
        await eventually(lambda: counted("done") == done + len(left), timedelta(seconds=5))
    assert counted("retried") == retried + len(left)


def test_only_what_can_be_called_is_a_reconcile_function() -> None:
    controller = Controller("copier")
    with pytest.raises(ConfigError, match="is not a function"):
        controller.reconcile("nonsense")  # type: ignore[type-var]


def plain_generator(_request: Request, _fleet: Fleet) -> Generator[None]:
    yield


async def async_generator(_request: Request, _fleet: Fleet) -> AsyncGenerator[None]:
    yield


@pytest.mark.parametrize("function", [plain_generator, async_generator])
def test_a_generator_is_no_reconcile_function(function: Any) -> None:
    with pytest.raises(ConfigError, match="has a `yield`"):
        Controller("copier").reconcile(function)
