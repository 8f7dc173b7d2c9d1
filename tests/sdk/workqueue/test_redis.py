"""The queue in Redis alone: the wire, the server's clock, the server itself."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import fleetbus.workqueue as package
from fleetbus.workqueue import (
    Add,
    Lease,
    Priority,
    QueueClosedError,
    QueuePolicy,
    QueueUnavailableError,
    RedisQueue,
)
from fleetbus.workqueue.queue import newest_trigger
from fleetbus.workqueue.scripts import Call, Transitions
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_proto import keys
from support.eventually import eventually
from support.stores.workqueue import named

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from fleetbus.reconcile import Request

A, B = named("a"), named("b")
SHORT = QueuePolicy(lease=timedelta(milliseconds=1200))


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    queue = RedisQueue(redis, "copier")
    yield queue
    await queue.aclose()


def client(url: str, **options: Any) -> Redis:
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


class CuttingProxy:
    """Forwards to a server; once armed, it delivers the next request and cuts before the answer."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 0))
        self._answers: set[asyncio.Task[None]] = set()
        self.is_armed = False
        self.cuts = 0

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield f"redis://127.0.0.1:{port}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, upward = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._answer(upstream, writer))
        try:
            while data := await reader.read(65536):
                upward.write(data)
        finally:
            back.cancel()
            with suppress(asyncio.CancelledError):
                await back
            upward.close()
            writer.close()

    async def _answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await upstream.read(65536):
            # A script that the server does not know yet has not run: its second try is the request.
            if self.is_armed and b"PONG" not in data and b"NOSCRIPT" not in data:
                self.is_armed, self.cuts = False, self.cuts + 1
                writer.close()
                return
            writer.write(data)


async def test_q11_a_take_whose_answer_was_lost_is_answered_again(valkey_url: str):
    proxy = CuttingProxy(valkey_url)
    async with proxy.serve() as url, client(url) as redis:
        queue = RedisQueue(redis, "copier")
        await queue.add([Add(named(f"n{n}")) for n in range(10)])
        proxy.is_armed = True
        with pytest.raises(QueueUnavailableError):
            await queue.take(4)
        assert (await queue.stats()).processing == 4
        leases = await queue.take(4)
        assert sorted(lease.request.name for lease in leases) == ["n0", "n1", "n2", "n3"]
        assert await queue.done(leases) == []
        assert [lease.request.name for lease in await queue.take(1)] == ["n4"]
        assert proxy.cuts == 1


async def test_q11_a_done_whose_answer_was_lost_may_be_repeated(valkey_url: str):
    proxy = CuttingProxy(valkey_url)
    async with proxy.serve() as url, client(url) as redis:
        queue = RedisQueue(redis, "copier")
        await queue.add([Add(A)])
        leases = await queue.take(1)
        proxy.is_armed = True
        with pytest.raises(QueueUnavailableError):
            await queue.done(leases)
        assert await queue.done(leases) == leases
        assert (await queue.stats()).processing == 0


async def test_q11_a_cancelled_take_loses_nothing(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    await redis.execute_command("CLIENT", "PAUSE", 500, "ALL")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await queue.take(1)
    [lease] = await queue.take(1)
    assert lease.request == A


async def test_q13_a_loop_of_calls_ends_at_its_first_cancellation(queue: RedisQueue):
    async def work() -> None:
        while True:
            await queue.done(await queue.take(1))

    for turns in range(60):
        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()


async def test_q11_five_hundred_items_are_one_call(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    before = await calls_of(redis, "evalsha")
    await queue.add([Add(named(f"n{n}")) for n in range(1_001)])
    assert await calls_of(redis, "evalsha") - before == 3
    assert len(await queue.take(1_000)) == 500


async def calls_of(redis: Redis, command: str) -> int:
    statistics: dict[str, Any] = await redis.info("commandstats")
    return int(statistics[f"cmdstat_{command}"]["calls"])


@pytest.mark.parametrize("token", ["", "a b", "a.b", "ä"])
async def test_q11_a_token_that_would_break_a_fence_is_refused(queue: RedisQueue, token: str):
    await queue.add([Add(A)])
    with pytest.raises(ValueError, match="token"):
        Transitions("copier", queue.policy).take(token, 1)


async def test_q1_eight_workers_never_share_a_key_and_miss_no_last_add(
    redis: Redis, queue: RedisQueue
):
    requests = [named(f"n{n}", cluster=f"c{n % 3}") for n in range(40)]
    versions = dict.fromkeys(requests, 0)
    taken_versions = dict.fromkeys(requests, 0)
    owners: dict[Request, str] = {}

    async def work(worker: RedisQueue) -> None:
        while True:
            leases = await worker.take(5, wait=timedelta(seconds=5))
            for lease in leases:
                assert lease.request not in owners
                owners[lease.request] = lease.fence
                taken_versions[lease.request] = versions[lease.request]
            await asyncio.sleep(0)
            for lease in leases:
                del owners[lease.request]
            assert await worker.done(leases) == []

    async def change(rounds: int) -> None:
        chooser = Random(rounds)
        for _ in range(rounds):
            chosen = chooser.sample(requests, 10)
            for request in chosen:
                versions[request] += 1
            await queue.add([Add(request) for request in chosen])

    workers = [RedisQueue(redis, "copier") for _ in range(8)]
    tasks = [asyncio.create_task(work(worker)) for worker in workers]

    async def is_done() -> bool:
        # A worker may see a version whose add is still under way, so the queue has to be empty too.
        return taken_versions == versions and await redis.keys("*") == []

    await asyncio.gather(change(60), change(61))
    await eventually(is_done)
    for worker in workers:
        await worker.aclose()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {QueueClosedError}
    assert await redis.keys("*") == []


async def test_q2_no_key_has_a_time_to_live_and_all_share_the_hash_tag(
    redis: Redis, queue: RedisQueue
):
    await fill_every_part(queue)
    for key in await names(redis):
        assert await redis.ttl(key) == -1
        assert key.startswith("fleetbus:{q:copier}:")


async def names(redis: Redis) -> list[str]:
    return [cast("bytes", key).decode() for key in await redis.keys("*")]


async def fill_every_part(queue: RedisQueue) -> None:
    await queue.add([Add(named(f"n{n}"), Priority(n % 3), b"1/5") for n in range(60)])
    leases = await queue.take(30)
    await queue.retry(leases[0])
    await queue.done(leases[1:9])
    await queue.add([Add(leases[2].request), Add(leases[20].request)])
    await queue.reap()


async def test_q2_two_controllers_do_not_see_each_other(redis: Redis, queue: RedisQueue):
    other = RedisQueue(redis, "other")
    await queue.add([Add(A)])
    assert await other.take(1) == []
    await other.add([Add(named("a", controller="other"))])
    assert len(await queue.take(5)) == 1


async def test_q3_a_worker_with_a_wrong_clock_neither_takes_early_nor_holds_longer(
    queue: RedisQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    skewed = RedisQueue(redis, "copier")
    await queue.add_after(A, timedelta(hours=1))
    await queue.add([Add(B)])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    [lease] = await skewed.take(5)
    assert lease.request == B
    [item] = await queue.processing()
    assert item.remaining <= queue.policy.lease
    monkeypatch.setattr(time, "time", lambda: real() - 86_400)
    await skewed.add_after(A, timedelta(milliseconds=1))
    await asyncio.sleep(0.005)  # it becomes due
    assert [one.request for one in await queue.take(5)] == [A]


async def test_q4_an_emptied_store_refuses_the_fences_of_before(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    before = await queue.take(1)
    await redis.flushall()
    assert await queue.extend(before) == before
    await queue.add([Add(A)])
    after = await queue.take(1)
    assert before[0].fence.rsplit(".", 1)[1] != after[0].fence.rsplit(".", 1)[1]
    assert await queue.done(before) == before
    assert await queue.done(after) == []


async def test_q4_a_rolled_back_store_repeats_no_fence(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    copies = {key: await redis.dump(key) or b"" for key in await names(redis)}
    lost = await queue.take(1)
    await redis.flushall()
    for key, copy in copies.items():
        await redis.restore(key, 0, copy)
    again = await queue.take(1)
    assert [lease.request for lease in again] == [A]
    assert await queue.done(lost) == lost
    assert await queue.done(again) == []


@pytest.mark.slow
async def test_q6_a_paused_server_expires_nothing_in_mass(tmp_path: Path):
    async with valkey_server(dir=tmp_path) as server, client(server.url) as redis:
        queue = RedisQueue(redis, "copier", policy=SHORT)
        await queue.add([Add(named(f"n{n}")) for n in range(50)])
        leases = await queue.take(50)
        reaper = asyncio.create_task(reap_for_ever(queue))
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(SHORT.lease.total_seconds() * 1.5)  # longer than the lease
        os.kill(server.pid, signal.SIGCONT)
        # Owners are late, as they are after a pause: the reaper gets the first word.
        await asyncio.sleep(SHORT.lease.total_seconds() / 2)
        assert await queue.extend(leases) == []
        reaper.cancel()
        with suppress(asyncio.CancelledError):
            await reaper
        assert await queue.done(leases) == []


async def reap_for_ever(queue: RedisQueue) -> None:
    while True:
        await queue.reap()
        await asyncio.sleep(0.02)  # between two turns


async def test_q6_a_restarted_server_gives_its_leases_one_more(tmp_path: Path):
    async with valkey_server(dir=tmp_path, appendonly=True) as server:
        async with client(server.url) as redis:
            queue = RedisQueue(redis, "copier")
            await queue.add([Add(A)])
            await queue.take(1)
            assert (await queue.reap()).held == timedelta(0)
        await server.restart()
        async with client(server.url) as redis:
            reaped = await RedisQueue(redis, "copier").reap()
            assert reaped.held > queue.policy.lease * 0.9


async def test_p9_a_server_that_is_gone_is_an_error_and_nothing_else(tmp_path: Path):
    async with valkey_server(dir=tmp_path) as server, client(server.url) as redis:
        queue = RedisQueue(redis, "copier")
        await queue.add([Add(A)])
        server.kill()
        with pytest.raises(QueueUnavailableError):
            await queue.add([Add(B)])
        with pytest.raises(QueueUnavailableError):
            await queue.take(1, wait=timedelta(seconds=5))
        await queue.aclose()


@pytest.mark.stores("valkey", "redis")
async def test_p9_a_full_store_refuses_adds_and_lets_work_end(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    leases = await queue.take(1)
    await redis.config_set("maxmemory-policy", "noeviction")
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(QueueUnavailableError, match="maxmemory"):
            await queue.add([Add(B)])
        assert await queue.extend(leases) == []
        assert await queue.done(leases) == []
    finally:
        await redis.config_set("maxmemory", "0")


async def test_p16_scripts_that_the_server_forgot_are_loaded_again(redis: Redis, queue: RedisQueue):
    await queue.add([Add(A)])
    await redis.script_flush()
    assert len(await queue.take(1)) == 1


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}])
async def test_any_client_of_redis_py_will_do(valkey_url: str, options: dict[str, Any]):
    async with client(valkey_url, **options) as redis:
        queue = RedisQueue(redis, "copier")
        await queue.add([Add(A, trigger=b"\xff\x00")])
        [lease] = await queue.take(1, wait=timedelta(seconds=1))
        assert (lease.request, lease.trigger) == (A, b"\xff\x00")
        assert (await queue.stats()).processing == 1
        await queue.aclose()


async def test_waiting_outlasts_the_socket_timeout_and_needs_one_connection(valkey_url: str):
    pool = BlockingConnectionPool.from_url(
        valkey_url, max_connections=2, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)
    )
    async with Redis(connection_pool=pool) as redis:
        queue = RedisQueue(redis, "copier")
        takes = [asyncio.create_task(queue.take(1, wait=timedelta(seconds=9))) for _ in range(5)]
        await asyncio.sleep(0.3)  # longer than the socket timeout
        await queue.add([Add(named(f"n{n}")) for n in range(5)])
        taken: list[Lease] = [lease for leases in await asyncio.gather(*takes) for lease in leases]
        assert len({lease.request for lease in taken}) == 5
        await queue.aclose()
    await pool.aclose()


async def test_a_waiter_whose_hint_got_lost_finds_the_item_soon(redis: Redis, queue: RedisQueue):
    waiting = asyncio.create_task(queue.take(1, wait=timedelta(seconds=9)))
    await asyncio.sleep(0.05)  # it begins to wait
    await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await queue.add([Add(A)])
    started = time.monotonic()
    assert [lease.request for lease in await waiting] == [A]
    assert time.monotonic() - started < 5, "it waited to the end"


async def test_the_way_from_add_to_take_is_short_and_waiting_costs_nothing(
    valkey_url: str, redis: Redis, queue: RedisQueue
):
    async with client(valkey_url) as other:
        taker = RedisQueue(other, "copier")
        delays: list[float] = []
        for _ in range(50):
            waiting = asyncio.create_task(taker.take(1, wait=timedelta(seconds=5)))
            await asyncio.sleep(0.005)  # it begins to wait
            started = time.perf_counter()
            await queue.add([Add(A)])
            leases = await waiting
            delays.append(time.perf_counter() - started)
            await taker.done(leases)
        # The benchmark shows less than a millisecond; here it is no look of its own, each second.
        assert median(delays) < 0.1
        before = await calls_of(redis, "evalsha")
        busy = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        assert await taker.take(1, wait=timedelta(seconds=0.6)) == []
        assert await calls_of(redis, "evalsha") - before <= 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - busy < 0.2
        await taker.aclose()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"1/9", b"1/10", b"1/10"),
        (b"1/10", b"1/9", b"1/10"),
        (b"9/1", b"10/1", b"10/1"),
        (b"10/1", b"9/500", b"10/1"),
        (b"1/9007199254740993", b"1/9007199254740992", b"1/9007199254740993"),
        (b"1/" + b"9" * 31, b"1/1" + b"0" * 31, b"1/1" + b"0" * 31),
        (b"1/5", b"", b"1/5"),
        (b"", b"1/5", b"1/5"),
        (b"opaque \xff", b"later", b"later"),
        (b"1/5", b"later \x00\n", b"later \x00\n"),
    ],
)
async def test_p10_of_two_triggers_the_newer_is_kept(
    queue: RedisQueue, old: bytes, new: bytes, expected: bytes
):
    await queue.add([Add(A, trigger=old)])
    await queue.add([Add(A, trigger=new)])
    [lease] = await queue.take(1)
    assert lease.trigger == expected
    assert newest_trigger(old, new) == expected


async def test_every_part_that_a_queue_fills_is_documented(redis: Redis, queue: RedisQueue):
    await fill_every_part(queue)
    assert package.__doc__ is not None
    prefix = keys.queue("copier", "")
    for key in await names(redis):
        suffix = key.removeprefix(prefix).split(":")[0]
        assert f"`{suffix}" in package.__doc__


class LateReader(RedisQueue):
    """Once its loop stands still between an answer of the store and the look at it."""

    sleeps = 0.0

    async def _send(self, call: Call) -> Any:
        answer = await super()._send(call)
        sleeps, self.sleeps = self.sleeps, 0.0
        time.sleep(sleeps)  # noqa: ASYNC251 -- the fault under test
        return answer


async def test_q5_leases_that_are_over_when_the_answer_is_read_are_no_ones_and_go_back(
    redis: Redis,
):
    queue = LateReader(redis, "copier", policy=QueuePolicy(lease=timedelta(milliseconds=100)))
    await queue.add([Add(A)])
    queue.sleeps = 0.15
    assert await queue.take(1) == []
    (lease,) = await queue.take(1)  # at once, and not as one whose owner died
    assert (lease.request, lease.attempt) == (A, 0)
    assert await queue.done([lease]) == []
    await queue.aclose()


async def test_q9_a_taker_that_has_no_room_for_what_is_ready_asks_seldom(
    redis: Redis, queue: RedisQueue
) -> None:
    await queue.add([Add(A), Add(B)])
    full = {A.cluster: 0, B.cluster: 0}
    before = await script_calls(redis)
    assert await queue.take(4, wait=timedelta(milliseconds=300), capacity=full) == []
    assert await script_calls(redis) - before <= 3


async def script_calls(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(int(call["calls"]) for name, call in stats.items() if "evalsha" in name)
