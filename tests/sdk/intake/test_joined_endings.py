"""Runs that end while requests are added end in the same call to the store (rules P8, Q12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from structlog.testing import capture_logs

from fleetbus.controller.controller import Controller
from fleetbus.intake.controller_store import Finished, RedisStore
from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.intake.record import NEVER, Change, LastSeen, StoredRecord
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.reconcile import Outcome, Request
from fleetbus.run.current import ObjectRef, Run
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.workqueue import RedisQueue
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Add, Lease
from fleetbus.workqueue.scripts import load
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.rigs.intake import no_heartbeat

A, B, C = (Request("copier", "eu1", "prod", name) for name in "abc")


@pytest.fixture
def controller() -> Controller:
    copier = Controller("copier")
    copier.watch("v1/pods")
    return copier


@pytest.fixture
def queue(redis: Redis) -> RedisQueue:
    return RedisQueue(redis, "copier")


def store_of(controller: Controller, queue: RedisQueue, redis: Redis) -> RedisStore:
    reader = SnapshotReader(redis, SnapshotKeys())
    return RedisStore(controller, queue, redis=redis, reader=reader, make_heartbeat=no_heartbeat)


@pytest.fixture
def store(redis: Redis, queue: RedisQueue, controller: Controller) -> RedisStore:
    return store_of(controller, queue, redis)


@asynccontextmanager
async def ending(store: RedisStore) -> AsyncGenerator[None]:
    """The loop that ends what ends with no add."""
    task = asyncio.create_task(store.run(), name="end leases")
    try:
        yield
    finally:
        await cancel_and_wait(task)


def ref(request: Request) -> ObjectRef:
    return ObjectRef(request.cluster, "core/pods", request.namespace, request.name)


def seen(request: Request, stored: StoredRecord | None = None) -> Change:
    now = LastSeen(version=(7, "10"), woken=NEVER, members={0: None})
    return Change(ref(request), stored or StoredRecord(), now)


def over(lease: Lease, read: str = "10", **options: Any) -> Finished:
    run = Run(lease.request, own="core/pods")
    run.note_read(ref(run.request), (7, read))
    last = LastRun(outcome=Outcome.DONE, attempt=1, queued=1, started=2, ended=3, worker="h-1")
    last_run = (lease.request, last)
    options = {"success": run, "last_run": last_run} | options
    return Finished(lease=lease, outcome=Outcome.DONE, **options)


async def leases_of(queue: RedisQueue, *requests: Request) -> list[Lease]:
    await queue.add([Add(request) for request in requests])
    return await queue.take(10)


async def scripts_run(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def held(queue: RedisQueue) -> list[Request]:
    return [lease.request for lease in await queue.processing()]


async def test_both_are_one_call(redis: Redis, queue: RedisQueue, store: RedisStore):
    [lease] = await leases_of(queue, A)
    await store.enqueue([(Add(C), ref(C))], [seen(C)])  # the server knows the script from now on
    store.finish(over(lease))
    before = await scripts_run(redis)
    await store.enqueue([(Add(B), ref(B))], [seen(B)])
    assert await scripts_run(redis) == before + 1
    assert await held(queue) == []
    stored = await store.load([ref(A), ref(B)])
    assert stored[ref(A)].read == (7, "10")
    assert stored[ref(B)].last_seen is not None
    assert [one.request for one in await queue.take(10)] == [C, B]


async def test_without_requests_to_add_they_end_by_themselves(queue: RedisQueue, store: RedisStore):
    [lease] = await leases_of(queue, A)
    async with ending(store):
        store.finish(over(lease))
        await store.emptied(within=timedelta(seconds=5))
        assert await held(queue) == []
        [lease] = await leases_of(queue, A)
        store.finish(over(lease))
        await eventually(lambda: is_free(queue))


async def is_free(queue: RedisQueue) -> bool:
    return await held(queue) == []


async def test_q12_the_last_ones_end_with_the_loop(queue: RedisQueue, store: RedisStore):
    first, second = await leases_of(queue, A, B)
    async with ending(store):
        await asyncio.sleep(0)  # the loop has begun
        store.finish(over(first, again=True, success=None))
        store.finish(over(second))
    assert await held(queue) == []
    assert [lease.request for lease in await queue.take(10)] == [A]


async def test_q4_a_lease_that_is_no_longer_ours_is_refused_and_the_others_end(
    queue: RedisQueue, store: RedisStore
):
    first, second = await leases_of(queue, A, B)
    await queue.done([first])
    store.finish(over(first))
    store.finish(over(second))
    with capture_logs() as lines:
        await store.enqueue([(Add(C), ref(C))], [seen(C)])
    assert [(line["event"], line["request"]) for line in lines] == [("lease_lost", str(A))]
    assert await held(queue) == []


async def test_p8_a_request_that_is_added_while_its_run_ends_runs_again(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    store.finish(over(lease, success=None))
    await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [seen(A)])
    [again] = await queue.take(10)
    assert (again.request, again.trigger) == (A, b"7/11")


async def test_p8_a_conflict_of_the_record_leaves_the_ending_alone(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    store.finish(over(lease))
    outdated = StoredRecord(revision=b"elsewhere")
    assert await store.enqueue([(Add(B), ref(B))], [seen(B, outdated)]) == {ref(B)}
    assert await held(queue) == []
    assert await queue.take(10) == []


async def test_p8_what_is_read_and_what_is_seen_of_one_object_are_both_stored(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    await store.enqueue([(Add(A), ref(A))], [seen(A)])
    stored = (await store.load([ref(A)]))[ref(A)]
    store.finish(over(lease))
    changed = Change(ref(A), stored, LastSeen((7, "11"), NEVER, {0: None}))
    assert await store.enqueue([(Add(A), ref(A))], [changed]) == set()
    now = (await store.load([ref(A)]))[ref(A)]
    assert now.read == (7, "10")
    assert now.revision not in (stored.revision, b"")


class FullForAdds(Redis):
    """A client of a store that has no room for more requests."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[:2] == ("EVALSHA", load("add").digest):
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
        return cast("Any", await super().execute_command(*args, **options))


async def test_p9_if_nothing_can_be_added_they_end_all_the_same(
    valkey_url: str, queue: RedisQueue, controller: Controller
):
    [lease] = await leases_of(queue, A)
    full = FullForAdds.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    store = store_of(controller, RedisQueue(full, "copier"), full)
    try:
        async with ending(store):
            store.finish(over(lease))
            with pytest.raises(QueueUnavailableError, match="maxmemory"):
                await store.enqueue([(Add(B), ref(B))], [seen(B)])
            await store.emptied(within=timedelta(seconds=5))
    finally:
        await full.aclose()
    assert await held(queue) == []


async def test_p16_the_ends_of_very_many_runs_are_divided_among_calls(
    redis: Redis, queue: RedisQueue, store: RedisStore
):
    many = [Request("copier", "eu1", "prod", f"run-{number}") for number in range(3_000)]
    await queue.add([Add(request) for request in many])
    leases = [lease for _ in range(6) for lease in await queue.take(500)]
    async with ending(store):
        for lease in leases:
            store.finish(over(lease))
        await store.emptied(within=timedelta(seconds=20))
    assert await held(queue) == []
    stored = await store.load([ref(many[0]), ref(many[-1])])
    assert {entry.read for entry in stored.values()} == {(7, "10")}
    last = await LastRuns(redis, "copier").get(many[-1])
    assert last is not None


# --- no run reads an older state than an earlier one (P10) ----------------------------------------


async def next_trigger(queue: RedisQueue) -> bytes:
    [lease] = await queue.take(10)
    return lease.trigger


@pytest.mark.parametrize(
    ("read", "trigger"),
    [("12", b""), ("11", b"7/11"), ("10", b"7/11"), ("9", b"7/11"), ("101", b"")],
)
async def test_p10_a_run_takes_away_the_trigger_that_it_has_read_past(
    queue: RedisQueue, store: RedisStore, read: str, trigger: bytes
):
    [lease] = await leases_of(queue, A)
    await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [seen(A)])
    store.finish(over(lease, read))
    await store.end_next()
    assert await next_trigger(queue) == trigger


async def test_p10_a_change_of_before_the_end_of_a_run_that_read_past_it(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    await store.enqueue([], [seen(A)])
    stored = (await store.load([ref(A)]))[ref(A)]
    store.finish(over(lease, "12"))
    await store.end_next()
    # Whoever evaluated it knew nothing of that read.
    assert stored.read is None
    changed = Change(ref(A), stored, LastSeen((7, "11"), (7, "11"), {0: None}))
    assert await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [changed]) == set()
    assert await next_trigger(queue) == b""


async def test_p10_the_same_in_one_call_and_only_for_that_object(
    queue: RedisQueue, store: RedisStore
):
    await store.enqueue([], [seen(A), seen(B)])
    stored = await store.load([ref(A), ref(B)])
    [lease] = await leases_of(queue, A)
    store.finish(over(lease, "12"))
    now = LastSeen((7, "11"), (7, "11"), {0: None})
    changes = [Change(ref(request), stored[ref(request)], now) for request in (B, A)]
    adds = [(Add(request, trigger=b"7/11"), ref(request)) for request in (B, A)]
    assert await store.enqueue(adds, changes) == set()
    triggers = {lease.request: lease.trigger for lease in await queue.take(10)}
    assert triggers == {A: b"", B: b"7/11"}


async def test_p10_a_change_that_comes_again_after_a_run_that_read_past_it(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    now = LastSeen((7, "11"), (7, "11"), {0: None})
    await store.enqueue([], [Change(ref(A), StoredRecord(), now)])
    stored = (await store.load([ref(A)]))[ref(A)]
    store.finish(over(lease, "12"))
    await store.end_next()
    again = Change(ref(A), stored, now)
    assert await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [again]) == set()
    assert await next_trigger(queue) == b""
    after = (await store.load([ref(A)]))[ref(A)]
    assert (after.revision, after.read) == (stored.revision, (7, "12")), "nothing new is stored"
    # What another process has stored since is evaluated first.
    later = Change(ref(A), stored, LastSeen((7, "13"), (7, "13"), {0: None}))
    await store.enqueue([], [later])
    assert await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [again]) == {ref(A)}


async def test_p10_a_read_that_proves_nothing_any_more_takes_nothing_away(
    queue: RedisQueue, store: RedisStore
):
    [lease] = await leases_of(queue, A)
    await store.enqueue([], [seen(A)])
    store.finish(over(lease, "12"))
    await store.end_next()
    stored = (await store.load([ref(A)]))[ref(A)]
    left = LastSeen((7, "11"), (7, "11"), {}, is_left=True)
    await store.enqueue([(Add(A, trigger=b"7/11"), ref(A))], [Change(ref(A), stored, left)])
    assert await next_trigger(queue) == b"7/11"
