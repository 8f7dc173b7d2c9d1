"""Runs that end while requests are added end in the same call to the store (rules P8, Q12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError

from fleetbus.controller.controller import Controller
from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.intake.record import NEVER, Change, LastSeen, Record, StoredRecord
from fleetbus.intake.recorded_queue import Ended, RecordedRedisQueue
from fleetbus.reconcile import Outcome, Request
from fleetbus.run.current import ObjectRef, Run
from fleetbus.workqueue import RedisQueue
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Add, Lease
from fleetbus.workqueue.scripts import load

A, B, C = (Request("copier", "eu1", "prod", name) for name in "abc")
SOON = timedelta(seconds=5)


@pytest.fixture
def controller() -> Controller:
    copier = Controller("copier")
    copier.watch("v1/pods")
    return copier


@pytest.fixture
def queue(redis: Redis) -> RedisQueue:
    return RedisQueue(redis, "copier")


@pytest.fixture
def recorded(redis: Redis, queue: RedisQueue, controller: Controller) -> RecordedRedisQueue:
    return RecordedRedisQueue(queue, Record(redis, controller))


def ref(request: Request) -> ObjectRef:
    return ObjectRef(request.cluster, "core/pods", request.namespace, request.name)


def seen(request: Request, stored: StoredRecord | None = None) -> Change:
    now = LastSeen(version=(7, "10"), woken=NEVER, members={0: None})
    return Change(ref(request), stored or StoredRecord(), now)


def over(*leases: Lease, reads: bool = False) -> Ended:
    runs = [Run(lease.request, own="core/pods") for lease in leases] if reads else []
    for run in runs:
        run.note_read(ref(run.request), (7, "10"))
    return Ended(leases, {}, runs, [])


async def leases_of(queue: RedisQueue, *requests: Request) -> list[Lease]:
    await queue.add([Add(request) for request in requests])
    return await queue.take(10)


async def end_with_next_add(recorded: RecordedRedisQueue, ended: Ended) -> list[Lease]:
    await recorded.until_add(within=SOON)
    return await recorded.done(ended)


async def scripts_run(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def held(queue: RedisQueue) -> list[Request]:
    return [lease.request for lease in await queue.processing()]


async def test_both_are_one_call(redis: Redis, queue: RedisQueue, recorded: RecordedRedisQueue):
    [lease] = await leases_of(queue, A)
    await recorded.add([(Add(C), ref(C))], [seen(C)])  # the server knows the script from now on
    ending = asyncio.create_task(end_with_next_add(recorded, over(lease, reads=True)))
    await asyncio.sleep(0)
    before = await scripts_run(redis)
    await recorded.add([(Add(B), ref(B))], [seen(B)])
    assert await ending == []
    assert await scripts_run(redis) == before + 1
    assert await held(queue) == []
    stored = await Record(redis, Controller("copier")).load([ref(A), ref(B)])
    assert stored[ref(A)].read == (7, "10")
    assert stored[ref(B)].last_seen is not None
    assert [one.request for one in await queue.take(10)] == [C, B]


async def test_without_requests_to_add_they_end_by_themselves(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    [lease] = await leases_of(queue, A)
    await recorded.until_add(within=timedelta(milliseconds=1))
    assert await recorded.done(over(lease)) == []
    assert await held(queue) == []


async def test_an_add_without_anything_to_add_ends_them_too(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    [lease] = await leases_of(queue, A)
    ending = asyncio.create_task(end_with_next_add(recorded, over(lease)))
    await asyncio.sleep(0)
    await recorded.add([], [])
    assert await ending == []
    assert await held(queue) == []


async def test_q4_a_lease_that_is_no_longer_ours_is_refused_and_the_others_end(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    first, second = await leases_of(queue, A, B)
    await queue.done([first])
    ending = asyncio.create_task(end_with_next_add(recorded, over(first, second)))
    await asyncio.sleep(0)
    await recorded.add([(Add(C), None)], [])
    assert await ending == [first]
    assert await held(queue) == []


async def test_p8_a_request_that_is_added_while_its_run_ends_runs_again(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    [lease] = await leases_of(queue, A)
    ending = asyncio.create_task(end_with_next_add(recorded, over(lease)))
    await asyncio.sleep(0)
    await recorded.add([(Add(A, trigger=b"7/11"), ref(A))], [seen(A)])
    assert await ending == []
    [again] = await queue.take(10)
    assert (again.request, again.trigger) == (A, b"7/11")


async def test_p8_a_conflict_of_the_record_leaves_the_ending_alone(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    [lease] = await leases_of(queue, A)
    ending = asyncio.create_task(end_with_next_add(recorded, over(lease)))
    await asyncio.sleep(0)
    outdated = StoredRecord(revision=b"elsewhere")
    assert await recorded.add([(Add(B), ref(B))], [seen(B, outdated)]) == {ref(B)}
    assert await ending == []
    assert await held(queue) == []
    assert await queue.take(10) == []


class FullForAdds(Redis):
    """A client of a store that has no room for more requests."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[:2] == ("EVALSHA", load("add").digest):
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
        return cast("Any", await super().execute_command(*args, **options))


async def test_p9_if_nothing_can_be_added_they_end_all_the_same(
    valkey_url: str, queue: RedisQueue, controller: Controller
):
    leases = await leases_of(queue, A)
    full = FullForAdds.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    recorded = RecordedRedisQueue(RedisQueue(full, "copier"), Record(full, controller))
    try:
        ending = asyncio.create_task(end_with_next_add(recorded, over(*leases)))
        await asyncio.sleep(0)
        with pytest.raises(QueueUnavailableError, match="maxmemory"):
            await recorded.add([(Add(B), ref(B))], [seen(B)])
        assert await ending == []
    finally:
        await full.aclose()
    assert await held(queue) == []


async def test_an_ending_that_comes_too_late_for_the_call_is_its_own(
    queue: RedisQueue, recorded: RecordedRedisQueue
):
    leases = await leases_of(queue, A)

    async def end_late() -> list[Lease]:
        await recorded.until_add(within=SOON)
        await asyncio.sleep(0.01)  # too late for the call
        return await recorded.done(over(*leases))

    ending = asyncio.create_task(end_late())
    await asyncio.sleep(0)
    await recorded.add([(Add(B), ref(B))], [seen(B)])
    assert await ending == []
    assert [lease.request for lease in await queue.take(10)] == [B]


async def test_p16_the_ends_of_very_many_runs_are_divided_among_calls(
    redis: Redis, queue: RedisQueue, recorded: RecordedRedisQueue
):
    many = [Request("copier", "eu1", "prod", f"run-{number}") for number in range(3_000)]
    await queue.add([Add(request) for request in many])
    leases = [lease for _ in range(6) for lease in await queue.take(500)]
    last = LastRun(outcome=Outcome.DONE, attempt=1, queued=1, started=2, ended=3, worker="h-1")
    ended = over(*leases, reads=True)
    ended = replace(ended, last_runs=[(request, last) for request in many])
    assert await recorded.done(ended) == []
    assert await held(queue) == []
    stored = await Record(redis, Controller("copier")).load([ref(many[0]), ref(many[-1])])
    assert {entry.read for entry in stored.values()} == {(7, "10")}
    assert await LastRuns(redis, "copier").get(many[-1]) == last
