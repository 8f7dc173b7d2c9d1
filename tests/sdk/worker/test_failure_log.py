"""A request that keeps failing is logged once, with the user's lines, and then with a count."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import Invalid
from fleetbus.reconcile import Request
from fleetbus.worker.failure_log import FailureLog, warn_of_failing_requests
from fleetbus.workqueue import Add, MemoryQueue, RedisQueue
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, SECOND, Notes, counted, working

SECRET = "S3CRET"


class Logged:
    """A log with a clock of its own, and the lines that it wrote."""

    def __init__(self, *, is_quiet: bool = False, **options: int) -> None:
        self.now = 0.0
        self.log = FailureLog(is_quiet=is_quiet, clock=lambda: self.now, **options)

    def fail(
        self, raise_it: Callable[[], None], request: Request = FIRST, **how: Any
    ) -> dict[str, Any] | None:
        """The line about this failure, if it got one that is shown."""
        with capture_logs() as lines:
            try:
                raise_it()
            except Exception as e:  # noqa: BLE001 -- as the worker does
                self.log.log(request, e, **how)
        (line,) = lines
        return None if line["log_level"] == "debug" else dict(line)


def boom() -> None:
    raise ValueError("boom at 12:00")


def boom_later() -> None:
    raise ValueError("boom at 12:01")


def refuse() -> None:
    raise Invalid(422, "Invalid", "the name is too long")


def test_the_first_failure_has_the_users_lines_and_the_next_ones_no_line() -> None:
    logged = Logged()
    first = logged.fail(boom, retry_in=timedelta(seconds=1))
    assert first is not None
    assert first["retry_in_seconds"] == 1.0
    assert "in boom" in first["exception"]
    assert [logged.fail(boom) for _ in range(10)] == [None] * 10


def test_after_half_a_minute_one_line_counts_the_repeats_without_their_traceback() -> None:
    logged = Logged()
    logged.fail(boom)
    for _ in range(9):
        assert logged.fail(boom) is None
    logged.now = 31
    line = logged.fail(boom)
    assert line is not None
    assert (line["failures"], line["error"]) == (10, "ValueError: boom at 12:00")
    assert "exception" not in line
    assert line["at"].endswith("in boom")
    assert logged.fail(boom) is None


def test_another_error_is_reported_at_once_and_in_full() -> None:
    logged = Logged()
    logged.fail(boom)
    assert logged.fail(boom) is None
    other = logged.fail(boom_later)
    assert other is not None
    assert "in boom_later" in other["exception"]
    expected = logged.fail(refuse)
    assert expected is not None
    assert "exception" not in expected
    timed_out = logged.fail(boom, timeout=timedelta(seconds=60))
    assert timed_out is not None
    assert timed_out["timeout_seconds"] == 60


def test_requests_that_fail_in_the_same_line_share_one_traceback() -> None:
    logged = Logged()
    first, other = logged.fail(boom), logged.fail(boom, SECOND)
    assert first is not None
    assert other is not None
    assert "exception" not in other
    assert other["error"] == "ValueError: boom at 12:00"
    assert other["at"].endswith("in boom")
    elsewhere = logged.fail(boom_later, SECOND)
    assert elsewhere is not None
    assert "in boom_later" in elsewhere["exception"]


def test_each_key_has_its_own_lines_and_a_success_begins_anew() -> None:
    logged = Logged()
    assert logged.fail(boom)
    assert logged.fail(boom, SECOND)
    assert logged.fail(boom) is None


def test_a_controller_of_secrets_tells_no_text() -> None:
    def leak() -> None:
        raise ValueError(SECRET)

    assert SECRET not in str(Logged(is_quiet=True).fail(leak))


def test_it_remembers_a_bounded_number_of_keys() -> None:
    logged = Logged(most=1)
    logged.fail(boom)
    logged.fail(boom, SECOND)
    assert logged.fail(boom, SECOND) is None
    assert logged.fail(boom)


async def test_a_key_that_fails_ten_times_has_one_line_and_one_when_it_recovers(
    redis: Redis, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        if notes.runs() <= 5:
            raise ValueError("boom")

    notes, queue, before = Notes(act), RedisQueue(redis, "copier", policy=POLICY), counted("done")
    with capture_logs() as lines:
        async with working(queue, valkey_url, notes):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("done") > before)
    await queue.aclose()
    visible = [line for line in lines if line["log_level"] != "debug"]
    names = ("reconcile_failed", "reconcile_recovered")
    about = [line for line in visible if line["event"] in names]
    assert [line["event"] for line in about] == list(names)
    assert about[1]["failures"] == 5


async def test_waiting_back_offs_are_reported_at_the_start(redis: Redis) -> None:
    for queue in (RedisQueue(redis, "copier"), MemoryQueue("copier")):
        with capture_logs() as lines:
            await warn_of_failing_requests(queue, "copier")
            await queue.add_after(SECOND, timedelta(hours=1))
            await warn_of_failing_requests(queue, "copier")
        assert lines == []
        await queue.add([Add(FIRST)])
        [lease] = await queue.take(1)
        await queue.retry(lease)
        await queue.done([lease])
        with capture_logs() as lines:
            await warn_of_failing_requests(queue, "copier")
        [line] = lines
        assert (line["event"], line["failing"]) == ("requests_wait_after_failures", 1)
        assert "fleetbus queue retry copier" in line["hint"]
        await queue.aclose()
