"""Record of the last run of a request: stored with its outcome, bounded, without secrets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from fleetbus.controller.controller import Controller
from fleetbus.intake import last_runs
from fleetbus.intake.last_runs import LastRun, LastRuns, describe_run
from fleetbus.process.redact import without_secret_words
from fleetbus.reconcile import Outcome, Request
from fleetbus.workqueue.queue import Lease, Priority
from fleetbus.workqueue.redis import RedisQueue
from fleetbus.workqueue.scripts import Ending
from support.rows import each_row
from support.stores.workqueue import named

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJmbGVldGJ1cyIsIm5hbWUiOiJ4In0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"


def run(ended: float) -> LastRun:
    return LastRun(outcome=Outcome.DONE, attempt=1, queued=1, started=2, ended=ended, worker="h-1")


def ended_run(
    outcome: Outcome,
    error: BaseException | None,
    resource: str = "v1/configmaps",
    attempt: int = 0,
) -> tuple[Request, LastRun]:
    controller = Controller("copier")
    controller.watch(resource)
    return describe_run(controller, lease(attempt), outcome, error, 3.0)


def lease(attempt: int = 0) -> Lease:
    return Lease(
        request=named("a"),
        fence="17.host-12_00ff.g",
        attempt=attempt,
        deadline=0.0,
        enqueued_at=datetime(2026, 1, 1, tzinfo=UTC),
        priority=Priority.LIVE,
        trigger=b"",
    )


@each_row(
    ("text", "stored"),
    [
        ("no route to nats://joe:secret@h:4222/x?a=b now", "no route to nats://h:4222/x now"),
        ("login failed: password=hunter2, again", "login failed: password=***, again"),
        ('{"token": "abc def", "k": 1}', '{"token": ***, "k": 1}'),
        ("Authorization: Bearer abcdefghijk refused", "Authorization: *** refused"),
        ("sent bearer abcdefghijk", "sent bearer ***"),
        (f"refused {JWT} there", "refused *** there"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb", "a *** b"),
        ("one\n  two", "one two"),
        ('conflict with "kubectl-patch" using v1: .data.text', None),
        ("configmaps default/motd 97fe2dd5-5ad3-4ec2-8b26-aaa689474bad not found", None),
    ],
)
def test_an_error_is_stored_in_one_line_and_without_what_logs_in(
    text: str, stored: str | None
) -> None:
    assert without_secret_words(text, limit=300) == (text if stored is None else stored)


def test_a_long_error_is_cut() -> None:
    assert without_secret_words("ab " * 1000, limit=10) == "ab ab ab …"


def test_an_end_tells_outcome_attempt_and_worker() -> None:
    request, ended = ended_run(Outcome.RETRIED, ValueError("no"), attempt=2)
    assert request == named("a")
    assert (ended.outcome, ended.attempt, ended.worker) == ("retried", 3, "host-12")
    assert ended.error == "ValueError: no"
    assert (ended.queued, ended.started) == (lease().enqueued_at.timestamp(), 3.0)


def test_of_a_controller_that_watches_secrets_no_text_is_kept() -> None:
    for resource in ("v1/secrets", "v1/configmaps"):
        _, ended = ended_run(Outcome.RETRIED, ValueError("hunter2"), resource)
        assert (ended.error == "ValueError") is (resource == "v1/secrets")
    controller = Controller("all")
    controller.watch_owned("*")
    _, ended = describe_run(controller, lease(), Outcome.RETRIED, ValueError("hunter2"), 3.0)
    assert ended.error == "ValueError"


def test_a_cancelled_run_and_an_invalid_result_are_described() -> None:
    _, ended = ended_run(Outcome.RETRIED, asyncio.CancelledError())
    assert ended.error == "cancelled; it may take 60 s"
    _, ended = ended_run(Outcome.GAVE_UP, None)
    assert ended.error == "it returned neither None nor a Result"


async def test_only_the_latest_are_kept(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_runs, "KEPT", 2)
    store = LastRuns(redis, "copier")

    async def note(*runs: tuple[Request, LastRun]) -> None:
        await RedisQueue(redis, "copier").done_recorded(Ending(runs=store.rows(runs)))

    await note((named("a"), run(1)), (named("b"), run(2)))
    await note((named("a"), run(3)), (named("c"), run(4)))
    assert await store.get(named("a")) == run(3)
    assert await store.get(named("b")) is None
    assert await store.get(named("c")) == run(4)
    assert sorted([await redis.hlen(key) for key in await redis.keys("*last-runs")]) == [2]  # pyright: ignore[reportGeneralTypeIssues]
