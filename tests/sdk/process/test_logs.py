"""Every line of a reconcile says which one it is, whoever writes it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import FleetbusError, NotFound, NotSynced
from fleetbus.fleet.fleet import Fleet
from fleetbus.process.logs import LogFormat, set_up_logs, standard_handler
from fleetbus.reconcile import Request, TerminalError
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, counted, working

WANTED = {
    "controller": "copier",
    "cluster": FIRST.cluster,
    "namespace": FIRST.namespace,
    "name": FIRST.name,
    "attempt": 1,
}


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


@pytest.fixture
def written() -> Generator[io.StringIO]:
    """The output of loggers of the standard library."""
    stream, logger = io.StringIO(), logging.getLogger("of.a.user")
    handler = standard_handler(structlog.processors.JSONRenderer(), stream)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


@pytest.fixture
def configured() -> Generator[None]:
    """Lets a test set up logs as a service does."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def refuse(secret: str) -> None:
    raise ValueError(f"refused: password={secret}")


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_s1_no_line_of_a_process_shows_variables_or_what_an_error_says_of_a_secret(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(log_format)
    log = structlog.get_logger()
    hunter = "S3CRET-in-a-variable"
    try:
        refuse(hunter)
    except ValueError as e:
        log.exception("one")
        log.error("two", exc_info=e)  # noqa: TRY400 -- the other spelling
        log.warning("three", error=str(e), reason=f"token: {hunter}", count=3)
    errors = capsys.readouterr().err
    assert "S3CRET" not in errors
    assert errors.count("ValueError: refused: password=***") == 2
    assert errors.count("raise ValueError(f") == 2
    assert "token: ***" in errors


def test_s1_what_asyncio_says_of_a_task_that_nobody_awaited_shows_no_secret(
    written: io.StringIO,
) -> None:
    logging.getLogger("asyncio").addHandler(logging.getLogger("of.a.user").handlers[0])
    try:
        logging.getLogger("asyncio").error("future: exception=%r", ValueError("password=S3CRET"))
    finally:
        logging.getLogger("asyncio").handlers.clear()
    assert json.loads(written.getvalue())["event"].endswith("('password=***')")


@pytest.mark.parametrize("is_plain", [False, True])
async def test_g7_lines_of_both_kinds_of_loggers_in_both_kinds_of_functions_name_the_run(
    queue: RedisQueue, valkey_url: str, written: io.StringIO, *, is_plain: bool
) -> None:
    def say(_request: Request, _fleet: Fleet) -> None:
        structlog.get_logger().info("mine")
        try:
            int("boom")
        except ValueError:
            logging.getLogger("of.a.user").exception("mine too, in %s", "short")

    async def say_in_tasks(request: Request, fleet: Fleet) -> None:
        await asyncio.create_task(asyncio.to_thread(say, request, fleet))

    before = counted("done")
    with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        async with working(queue, valkey_url, say if is_plain else say_in_tasks):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("done") == before + 1)
    mine = next(line for line in lines if line["event"] == "mine")
    other: dict[str, Any] = json.loads(written.getvalue())
    assert mine["reconcile_id"] == other["reconcile_id"]
    for line in (mine, other):
        assert {field: line[field] for field in WANTED} == WANTED
    assert other["event"] == "mine too, in short"
    assert (other["level"], other["logger"]) == ("error", "of.a.user")
    assert "ValueError: invalid literal" in other["exception"]


async def test_g7_every_line_that_the_worker_writes_about_a_run_names_it(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request, _fleet: Fleet) -> None:
        raise ValueError("boom")

    before = counted("retried")
    with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        async with working(queue, valkey_url, act):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("retried") >= before + 2)
    reported = [line for line in lines if line["event"] == "reconcile_failed"]
    assert [line["attempt"] for line in reported[:2]] == [1, 2]
    assert len({line["reconcile_id"] for line in reported}) == len(reported)
    assert all(line.keys() >= WANTED.keys() for line in reported)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("error", "event", "outcome"),
    [
        (NotFound(404, "NotFound", "no such thing"), "reconcile_failed", "retried"),
        (NotSynced("not yet"), "reconcile_waits", "retried"),
        (TerminalError("enough"), "reconcile_gave_up", "gave_up"),
    ],
)
async def test_an_error_in_one_line_says_where_the_users_code_got_it(
    queue: RedisQueue,
    valkey_url: str,
    error: FleetbusError,
    event: str,
    outcome: str,
    *,
    is_plain: bool,
) -> None:
    async def fail() -> None:
        raise error

    async def call(_request: Request, _fleet: Fleet) -> None:
        await asyncio.wait_for(fail(), 5)

    def plain(_request: Request, fleet: Fleet) -> None:
        fleet.wait(fail())

    before = counted(outcome)
    with capture_logs() as lines:
        async with working(queue, valkey_url, plain if is_plain else call):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted(outcome) > before)
    line = next(line for line in lines if line["event"] == event)
    assert line["at"] == f"{__file__}:{fail.__code__.co_firstlineno + 1} in fail"
