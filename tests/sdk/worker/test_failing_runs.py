"""Whatever a reconcile function raises or answers, it is retried or given up, and logged (R8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import Invalid, LeaseLostError
from fleetbus.reconcile import Request, Result, TerminalError
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, SECOND, Notes, counted, is_empty, working
from support.stores.workqueue import named

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

CANARY = "S3CRET-hunter2"


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


class Outside(BaseException):
    """Like the failures of test frameworks."""


class Unlike:
    """An answer that can be neither compared nor shown."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __repr__(self) -> str:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


RAISED = {
    named(type(error).__name__.lower()): error
    for error in (
        *(Mute(), SystemExit(3), Outside(), LeaseLostError("of another run")),
        *(GeneratorExit(), KeyboardInterrupt(), asyncio.CancelledError()),
        ValueError("odd \udcff"),
    )
}


async def test_r8_whatever_is_raised_is_retried_with_back_off_and_the_others_go_on(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    async def act(request: Request) -> None:
        if request in RAISED and notes.runs(request) <= 3:
            raise RAISED[request]

    notes, before = Notes(act), counted("retried")
    async with working(queue, valkey_url, notes, record_on=redis):
        await queue.add([Add(request) for request in (*RAISED, FIRST)])
        await eventually(lambda: set(notes.finished) == {*RAISED, FIRST})
        await eventually(lambda: is_empty(queue))
    assert counted("retried") == before + 3 * len(RAISED)
    for request in RAISED:
        first, *_, last = [at for started, at in notes.started if started == request]
        assert last - first >= 0.07  # 10, 20 and 40 ms


async def test_r8_a_run_that_cancels_itself_is_retried_with_back_off(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        task = asyncio.current_task()
        if notes.runs() <= 3 and task:
            task.cancel()
            await asyncio.sleep(1)  # it is cancelled here

    notes, before = Notes(act), counted("retried")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.finished == [FIRST])
    assert counted("retried") == before + 3
    assert notes.started[-1][1] - notes.started[0][1] >= 0.07  # 10, 20 and 40 ms


async def test_r8_an_answer_that_cannot_be_looked_at_is_invalid(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> object:
        return Unlike()

    notes, before = Notes(act), counted("gave_up")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST), Add(SECOND)])
        await eventually(lambda: counted("gave_up") == before + 2)
        await eventually(lambda: is_empty(queue))
    assert len(notes.started) == 2


async def test_r8_a_result_that_cannot_be_made_fails_the_run_where_the_author_made_it(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(request: Request) -> object:
        return Result(requeue_after=Unlike()) if notes.runs(request) == 1 else None  # type: ignore[arg-type]

    notes, before = Notes(act), counted("retried")
    with capture_logs() as lines:
        async with working(queue, valkey_url, notes):
            await queue.add([Add(FIRST)])
            await eventually(lambda: notes.runs() == 2)
            await eventually(lambda: is_empty(queue))
    assert counted("retried") == before + 1
    (line,) = [line for line in lines if line["event"] == "reconcile_failed"]
    assert "requeue_after must be a timedelta or a number of seconds" in repr(line)


ERRORS = [
    ValueError(f"cannot log in: password={CANARY}"),
    Invalid(422, "Invalid", f'data.token: "{CANARY}" is not allowed'),
    TerminalError(f"no: token={CANARY}"),
]


@pytest.mark.parametrize("resource", ["v1/pods", "v1/secrets"])
async def test_s1_no_line_about_a_run_shows_what_an_error_quotes_of_a_secret(
    queue: RedisQueue, valkey_url: str, resource: str
) -> None:
    def raising(request: Request) -> Exception | None:
        return ERRORS[notes.runs(request) - 1] if notes.runs(request) <= len(ERRORS) else None

    async def act(request: Request) -> Any:
        if error := raising(request):
            raise error
        return {"data": {"password": CANARY}}

    notes, before = Notes(act), counted("gave_up")
    with capture_logs() as lines:
        async with working(queue, valkey_url, notes, watch={"resource": resource}):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("gave_up") == before + 1)
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("gave_up") == before + 2)
    logged = repr([line for line in lines if "reconcile" in line["event"]])
    assert CANARY not in logged
    for error in ERRORS:
        assert type(error).__name__ in logged
    assert "raise error" in logged, "a first failure comes with its trace"
    assert ("cannot log in" in logged) is (resource == "v1/pods"), (
        "what handles Secrets says nothing"
    )


async def test_r8_a_trigger_that_cannot_be_read_is_none(queue: RedisQueue, valkey_url: str) -> None:
    notes = Notes()
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST, trigger=b"nonsense")])
        await eventually(lambda: notes.finished == [FIRST])


async def test_r8_a_mistake_of_ours_is_reported_and_the_request_comes_back_with_back_off(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    record = "fleetbus:{q:copier}:record:c1:core/pods"
    await redis.hset(record, "ns/a", b"1/2\n")  # type: ignore[misc]
    strange = Redis.from_url(valkey_url, decode_responses=True)  # of another type than is wanted
    notes, before = Notes(), counted("retried")
    watch = {"resource": "v1/pods", "namespaces": ["ns"]}
    with capture_logs() as lines:
        async with working(queue, valkey_url, notes, watch=watch, record_on=strange):
            await queue.add([Add(FIRST), Add(SECOND)])
            await eventually(lambda: counted("retried") >= before + 2)
            await eventually(lambda: notes.finished == [SECOND])
            await redis.delete(record)
            await eventually(lambda: notes.finished == [SECOND, FIRST])
    logged = [line for line in lines if line["event"] == "run_failed"]
    assert "TypeError" in logged[0]["exception"]
    await strange.aclose()
