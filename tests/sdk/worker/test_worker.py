"""The worker ladder on a real queue: every outcome of rule R8, and that no request is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from fleetbus.errors import (
    ClusterNotFound,
    Conflict,
    LeaseLostError,
    NotEngaged,
    NotSynced,
    SnapshotBehind,
)
from fleetbus.reconcile import Request, Result, TerminalError
from fleetbus.run.current import ObjectRef, current_run
from fleetbus.workqueue import Add, RedisQueue
from fleetbus.workqueue.queue import encode_trigger
from fleetbus_devfleet.processes.servers import ValkeyServer, valkey_server
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, QUICK, SECOND, Notes, counted, is_empty, working
from support.stores.workqueue import named


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


async def attempts(redis: Redis) -> int:
    return int(await redis.hlen("fleetbus:{q:copier}:attempts"))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, "done"),
        (Result(), "done"),
        (TerminalError("no"), "gave_up"),
        ("nonsense", "gave_up"),
    ],
)
async def test_r8_an_outcome_that_ends_a_request_leaves_nothing_in_the_queue(
    queue: RedisQueue, valkey_url: str, answer: object, outcome: str
) -> None:
    async def act(_request: Request) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    notes, before = Notes(act), counted(outcome)
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted(outcome) == before + 1)
        await eventually(lambda: is_empty(queue))
    assert notes.runs() == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        NotEngaged("soon"),
        NotSynced("soon"),
        Conflict(409, "Conflict", "someone wrote first"),
        TimeoutError("of its own"),
        asyncio.CancelledError("of a task of its own"),
    ],
)
async def test_r8_any_other_error_is_retried_with_a_delay_that_grows_and_success_clears_it(
    queue: RedisQueue, redis: Redis, valkey_url: str, error: BaseException
) -> None:
    async def act(_request: Request) -> None:
        if notes.runs() <= 4:
            raise error

    notes, before = Notes(act), counted("retried")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: len(notes.finished) == 1)
        await eventually(lambda: is_empty(queue))
    gaps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(notes.started)]
    # Back-off 10, 20, 40, 80 ms: each pause is at least that long.
    assert len(gaps) == 4
    assert all(gap >= 0.01 * 2**index for index, gap in enumerate(gaps))
    assert counted("retried") == before + 4
    assert await attempts(redis) == 0


async def test_r8_a_requeue_comes_back_after_its_time_and_clears_the_failures(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    async def act(_request: Request) -> Result | None:
        if notes.runs() == 1:
            raise ValueError("first")
        return Result(timedelta(milliseconds=200)) if notes.runs() == 2 else None

    notes = Notes(act)
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.runs() == 2)
        await eventually(lambda: _is_zero(redis))
        await eventually(lambda: len(notes.finished) == 2)
    assert notes.started[2][1] - notes.started[1][1] >= 0.2


async def _is_zero(redis: Redis) -> bool:
    return await attempts(redis) == 0


@pytest.mark.parametrize("delay", [timedelta(seconds=-3), timedelta.max])
async def test_r8_a_requeue_that_no_clock_can_hold_is_brought_into_range(
    queue: RedisQueue, valkey_url: str, delay: timedelta
) -> None:
    async def act(_request: Request) -> Result | None:
        return Result(delay) if notes.runs() == 1 else None

    notes, before = Notes(act), counted("requeued")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted("requeued") == before + 1)
        await eventually(lambda: _is_processed(queue))


async def _is_processed(queue: RedisQueue) -> bool:
    return not (await queue.stats()).processing


async def test_r7_a_run_over_its_timeout_is_cancelled_and_retried(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        if notes.runs() == 1:
            await asyncio.sleep(60)  # until the timeout

    notes = Notes(act)
    async with working(queue, valkey_url, notes, timeout=timedelta(milliseconds=200)):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.finished == [FIRST])
    assert notes.cancelled == [FIRST]


async def test_r8_one_key_that_always_fails_does_not_hold_up_the_others(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(request: Request) -> None:
        if request == FIRST:
            raise ValueError("always")

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=1):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.runs(FIRST) >= 2)
        await queue.add([Add(SECOND), Add(named("c"))])
        await eventually(
            lambda: set(notes.finished) == {SECOND, named("c")}, within=timedelta(seconds=5)
        )


async def test_q1_changes_during_a_slow_run_cause_exactly_one_further_run(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        await asyncio.sleep(0.2)  # a slow run

    notes = Notes(act)
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.running == {FIRST})
        for _ in range(5):
            await queue.add([Add(FIRST)])
        await eventually(lambda: is_empty(queue))
    assert notes.runs() == 2


async def test_r7_a_process_works_on_no_more_than_its_concurrency_and_uses_all_of_it(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        await asyncio.sleep(0.02)  # a run takes its time

    notes = Notes(act)
    async with working(queue, valkey_url, notes, concurrency=3):
        await queue.add([Add(named(f"n{i}")) for i in range(30)])
        await eventually(lambda: len(notes.finished) == 30)
    assert notes.most == 3


async def test_r3_of_two_workers_one_at_a_time_has_a_key_and_both_have_many(
    queue: RedisQueue, valkey_url: str
) -> None:
    are_both_full = asyncio.Event()

    async def act(_request: Request) -> None:
        if len(notes.running) > 8:  # more than the slots of one
            are_both_full.set()
        await are_both_full.wait()
        await asyncio.sleep(0.005)  # a run takes its time

    notes = Notes(act)  # shared: a run fails that finds its key running
    keys = [named(f"n{index}") for index in range(12)]
    before, failed = counted("done"), counted("retried")
    async with working(queue, valkey_url, notes), working(queue, valkey_url, notes):
        for _ in range(5):
            await queue.add([Add(key) for key in keys])
            await asyncio.sleep(0.004)  # the pace of the changes
        await eventually(lambda: is_empty(queue))
    assert {request for request, _ in notes.started} == set(keys)
    assert counted("done") - before == len(notes.finished)
    assert counted("retried") == failed


async def test_a_run_that_is_stopped_in_the_middle_gives_its_request_back_at_once(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        await asyncio.sleep(60)  # until it is stopped

    notes = Notes(act)
    async with working(queue, valkey_url, notes, patience=QUICK):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.running == {FIRST})
    assert notes.cancelled == [FIRST]
    leases = await queue.take(10)
    assert [(lease.request, lease.attempt) for lease in leases] == [(FIRST, 0)]


async def test_a_run_that_ends_within_the_drain_is_done_and_its_key_free_at_once(
    queue: RedisQueue, valkey_url: str
) -> None:
    is_seen = asyncio.Event()

    async def act(request: Request) -> None:
        if request == FIRST:
            await asyncio.sleep(0.1)  # within the drain
        else:
            await is_seen.wait()

    notes = Notes(act)
    async with working(queue, valkey_url, notes) as worker:
        await queue.add([Add(FIRST), Add(SECOND)])
        await eventually(lambda: notes.running == {FIRST, SECOND})
        worker.stop()

        async def only_b_runs() -> bool:
            return [lease.request for lease in await queue.processing()] == [SECOND]

        await eventually(only_b_runs)
        assert notes.running == {SECOND}
        is_seen.set()
    assert set(notes.finished) == {FIRST, SECOND}
    assert await is_empty(queue)


async def test_q11_a_take_that_is_cut_off_by_the_stop_gives_back_what_it_took(
    queue: RedisQueue, valkey_url: str
) -> None:
    for turn in range(25):
        notes = Notes()
        await queue.add([Add(named(f"k{turn}"))])
        async with working(queue, valkey_url, notes):
            for _ in range(turn % 7):
                await asyncio.sleep(0)
        # Nothing is left for the reaper, whatever moment the stop came at.
        assert (await queue.stats()).processing == 0
        await queue.done(await queue.take(10))


async def test_r4_a_lost_lease_cancels_its_handler_and_what_it_did_is_not_recorded(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        if notes.runs() == 1:
            await asyncio.sleep(60)  # until it is cancelled

    notes, before = Notes(act), counted("lease_lost")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.running == {FIRST})
        # As after the loss of the store: the queue knows nothing of this lease any more.
        await redis.flushall()
        await eventually(lambda: notes.cancelled == [FIRST])
        await eventually(lambda: counted("lease_lost") == before + 1)
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.finished == [FIRST])


async def test_r4_a_write_that_was_held_back_is_not_taken_for_done(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    """The handler swallows the refusal; the queue knows nothing of its lease any more."""

    async def act(_request: Request) -> None:
        if notes.runs() == 1:
            await redis.flushall()
            await _until_refused()

    notes, before = Notes(act), counted("lease_lost")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: counted("lease_lost") == before + 1)
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.finished[-1:] == [FIRST])


async def _until_refused() -> None:
    """Ask before each of many writes, and take no notice of the answer, nor of being stopped."""
    run = current_run()
    while run and not run.was_refused:
        with contextlib.suppress(LeaseLostError, asyncio.CancelledError):
            run.require_lease()
            await asyncio.sleep(0.01)  # between two writes


async def test_p10_a_run_that_the_snapshot_is_behind_of_comes_back_and_counts_as_no_failure(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    triggers: list[object] = []

    async def act(_request: Request) -> None:
        run = current_run()
        assert run is not None
        triggers.append((run.own, run.trigger))
        if notes.runs() < 3:
            raise SnapshotBehind("v1/pods ns/a is at 9")

    notes, before = Notes(act), lagged()
    async with working(queue, valkey_url, notes, patience=QUICK):
        await queue.add([Add(FIRST, trigger=encode_trigger(1, "10"))])
        await eventually(lambda: notes.finished == [FIRST])
        await eventually(lambda: is_empty(queue))
    assert triggers == 3 * [("core/pods", (1, "10"))]
    assert lagged() == before + 2
    assert await attempts(redis) == 0


def lagged() -> float:
    sample = REGISTRY.get_sample_value("fleetbus_snapshot_behind_total", {"controller": "copier"})
    return sample or 0.0


async def test_r5_what_a_run_wrote_is_known_to_the_next_one(
    queue: RedisQueue, valkey_url: str
) -> None:
    ref = ObjectRef("c1", "core/pods", "ns", "child")
    versions: list[object] = []

    async def act(_request: Request) -> None:
        run = current_run()
        assert run is not None
        versions.append([written.resource_version for written in run.writes.values()])
        if notes.runs() == 1:
            run.note_write(ref, "12", "uid")
            raise ValueError("also when it fails")
        run.writes.clear()

    notes = Notes(act)
    async with working(queue, valkey_url, notes):
        for runs in (2, 3):
            await queue.add([Add(FIRST)])
            await eventually(lambda runs=runs: len(versions) == runs)
            await eventually(lambda: is_empty(queue))
    assert versions == [[], ["12"], []]


async def test_r5_what_a_run_wrote_is_known_to_the_next_one_also_if_it_was_stopped(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        run = current_run()
        assert run is not None
        run.note_write(ObjectRef("c1", "core/pods", "ns", "child"), "12", "uid")
        await asyncio.sleep(60)  # until it is stopped

    notes = Notes(act)
    async with working(queue, valkey_url, notes, patience=QUICK):
        await queue.add([Add(FIRST, trigger=b"1/10")])
        await eventually(lambda: notes.running == {FIRST})
    (lease,) = await queue.take(10)
    assert (lease.request, lease.attempt, lease.trigger) == (FIRST, 0, b"1/10")
    assert b"child" in lease.note
    await queue.done([lease])
    assert await is_empty(queue)


@pytest.mark.slow
async def test_q5_a_handler_that_blocks_the_loop_keeps_its_lease(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        time.sleep(1.5 * POLICY.lease.total_seconds())  # noqa: ASYNC251 -- the fault under test

    notes, before = Notes(act), counted("lease_lost")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.finished == [FIRST])
        await eventually(lambda: is_empty(queue))
    assert notes.runs() == 1
    assert counted("lease_lost") == before


async def test_q12_an_outcome_is_recorded_although_the_store_was_away_for_a_moment(
    tmp_path: Any,
) -> None:
    async with valkey_server(dir=tmp_path, port=None) as server:
        redis = Redis.from_url(server.url)
        queue = RedisQueue(redis, "copier", policy=POLICY)
        notes = Notes(lambda request: _fail_once(server, notes, request))
        async with working(queue, server.url, notes):
            await queue.add([Add(FIRST)])
            await eventually(lambda: notes.finished == [FIRST])
        # The failure was recorded by its own worker: no reaper counted a lost owner.
        assert await redis.hlen("fleetbus:{q:copier}:reclaims") == 0  # type: ignore[misc]
        await queue.aclose()
        await redis.aclose()


async def _fail_once(server: ValkeyServer, notes: Notes, _request: Request) -> None:
    if notes.runs() > 1:
        return
    client = Redis.from_url(server.url)
    await client.execute_command("CLIENT", "PAUSE", "100", "WRITE")
    await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await client.aclose()
    raise ValueError("first")


async def test_a_handler_that_a_swallowed_cancellation_lets_go_on_does_not_end_the_worker(
    queue: RedisQueue, redis: Redis, valkey_url: str
) -> None:
    async def act(request: Request) -> None:
        if request == FIRST:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)  # until it is cancelled

    notes = Notes(act)
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.running == {FIRST})
        await redis.flushall()
        await eventually(lambda: notes.finished == [FIRST])
        await queue.add([Add(SECOND)])
        await eventually(lambda: notes.finished == [FIRST, SECOND])


async def test_a_request_of_a_cluster_that_nobody_knows_makes_no_series_of_its_own(
    queue: RedisQueue, valkey_url: str
) -> None:
    notes, before = Notes(), counted("done", "")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(named("a", cluster="from-an-owner-mark"))])
        await eventually(lambda: counted("done", "") == before + 1)
    assert counted("done", "from-an-owner-mark") == 0.0


async def test_r8_a_request_of_a_cluster_that_left_ends_without_a_retry(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        raise ClusterNotFound("cluster 'gone' is not in the fleet")

    notes = Notes(act)
    gone = Request("copier", "gone", "ns", "a")
    async with working(queue, valkey_url, notes):
        await queue.add([Add(gone)])
        await eventually(lambda: notes.runs(gone) == 1)

        async def nothing_is_left() -> bool:
            return await is_empty(queue)

        await eventually(nothing_is_left)
    assert notes.runs(gone) == 1


async def test_r8_a_request_that_needs_a_cluster_not_joined_yet_is_tried_again(
    queue: RedisQueue, valkey_url: str
) -> None:
    async def act(_request: Request) -> None:
        raise ClusterNotFound("cluster 'later' is not in the fleet")

    notes = Notes(act)
    async with working(queue, valkey_url, notes):
        await queue.add([Add(FIRST)])
        await eventually(lambda: notes.runs() >= 3)
