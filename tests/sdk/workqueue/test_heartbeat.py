"""The heartbeat's thread keeps leases while the loop is blocked, and tells in time (rule Q5)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from fleetbus.workqueue import (
    Add,
    Heartbeat,
    Lease,
    QueuePolicy,
    RedisQueue,
    connect_blocking,
)
from fleetbus.workqueue.heartbeat import end_process
from fleetbus.workqueue.scripts import Transitions
from fleetbus_devfleet.processes.servers import valkey_server
from support.eventually import eventually, stays
from support.processes.programs import module
from support.stores.workqueue import named

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

A, B = named("a"), named("b")
POLICY = QueuePolicy(lease=timedelta(milliseconds=1200))
"""A busy machine may let the thread stand still for half of it, and a call wait for a tenth."""
LEASE = POLICY.lease.total_seconds()


class Losses:
    """The losses that the heartbeat reported to the loop, and when."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.at: list[float] = []

    def __call__(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.at.append(time.monotonic())


@asynccontextmanager
async def beating(
    url: str,
    losses: Losses,
    on_stuck: Callable[[Lease], None] = end_process,
    policy: QueuePolicy = POLICY,
) -> AsyncGenerator[Heartbeat]:
    async with Heartbeat(
        connect_blocking(url, policy), "copier", policy=policy, on_lost=losses, on_stuck=on_stuck
    ) as heartbeat:
        yield heartbeat


@pytest.fixture
def queue(redis: Redis) -> RedisQueue:
    return RedisQueue(redis, "copier", policy=POLICY)


@asynccontextmanager
async def foreign_reaper(url: str) -> AsyncGenerator[list[int]]:
    """Another process's reaper, as a thread with a connection of its own."""
    recovered: list[int] = []
    stopped = threading.Event()

    def reap() -> None:
        client = connect_blocking(url, QueuePolicy())  # patient: it has nothing to be late for
        call = Transitions("copier", POLICY).reap()
        while not stopped.wait(0.02):
            recovered.append(call.send_blocking(client)[2])
        client.close()

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        yield recovered
    finally:
        stopped.set()
        await asyncio.to_thread(thread.join)


@pytest.mark.slow
async def test_q5_a_blocked_event_loop_loses_no_lease(valkey_url: str, queue: RedisQueue):
    losses = Losses()
    await queue.add([Add(A), Add(B)])
    async with beating(valkey_url, losses) as heartbeat, foreign_reaper(valkey_url) as recovered:
        leases = await queue.take(2)
        heartbeat.hold(leases)
        time.sleep(LEASE * 1.5)  # noqa: ASYNC251 - blocking the loop is the point
        await stays([], lambda: losses.leases)
        assert await queue.done(leases) == []
        heartbeat.drop(leases)
    assert sum(recovered) == 0


@pytest.mark.slow
async def test_q5_a_lease_no_longer_held_runs_out(valkey_url: str, queue: RedisQueue):
    await queue.add([Add(A)])
    async with beating(valkey_url, Losses()) as heartbeat, foreign_reaper(valkey_url) as recovered:
        leases = await queue.take(1)
        heartbeat.hold(leases)
        heartbeat.drop(leases)
        await eventually(lambda: sum(recovered) == 1)


async def test_q5_a_refused_lease_is_reported_once_and_only_while_its_handler_runs(
    valkey_url: str, queue: RedisQueue
):
    losses = Losses()
    await queue.add([Add(A), Add(B)])
    async with beating(valkey_url, losses) as heartbeat:
        leases = await queue.take(2)
        heartbeat.hold(leases)
        heartbeat.outlive(leases[1])
        await queue.done(leases)
        await eventually(lambda: losses.leases)
        # two more beats
        await stays(leases[:1], lambda: losses.leases, timedelta(seconds=LEASE * 2 / 3))


async def test_q5_a_lease_whose_take_was_answered_late_is_confirmed_and_not_reported_lost(
    valkey_url: str, queue: RedisQueue
):
    losses = Losses()
    await queue.add([Add(A), Add(B)])
    async with beating(valkey_url, losses) as heartbeat:
        for lease in await queue.take(2):  # the second one comes just after a beat
            late = replace(lease, deadline=time.monotonic() + heartbeat.margin)
            heartbeat.hold([late])
            await eventually(lambda late=late: heartbeat.vouches_for(late) or losses.leases)
        assert losses.leases == []


@pytest.mark.slow
async def test_q5_a_lease_that_cannot_be_confirmed_is_reported_before_it_ends(tmp_path: Path):
    losses = Losses()
    policy = QueuePolicy(
        lease=2 * POLICY.lease
    )  # a loss is reported a fifth of that before its end
    async with (
        valkey_server(dir=tmp_path) as server,
        Redis.from_url(server.url) as redis,
        beating(server.url, losses, policy=policy) as heartbeat,
    ):
        queue = RedisQueue(redis, "copier", policy=policy)
        await queue.add([Add(A)])
        [lease] = await queue.take(1)
        heartbeat.hold([lease])
        stopped_at = time.monotonic()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: losses.leases == [lease])
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # The last confirmation is at most as old as the pause.
        assert losses.at[0] < stopped_at + 2 * LEASE
        assert losses.at[0] > stopped_at + LEASE / 2


@pytest.mark.slow
async def test_q5_a_short_outage_is_no_loss(tmp_path: Path):
    losses = Losses()
    async with (
        valkey_server(dir=tmp_path) as server,
        Redis.from_url(server.url) as redis,
        beating(server.url, losses) as heartbeat,
    ):
        queue = RedisQueue(redis, "copier", policy=POLICY)
        await queue.add([Add(A)])
        leases = await queue.take(1)
        heartbeat.hold(leases)
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(LEASE / 4)  # a pause shorter than the lease
        os.kill(server.pid, signal.SIGCONT)
        await stays([], lambda: losses.leases, timedelta(seconds=LEASE))
        assert await queue.done(leases) == []


@pytest.mark.slow
async def test_q5_a_handler_that_never_returns_is_not_renewed_for_ever(
    valkey_url: str, queue: RedisQueue
):
    stuck: list[Lease] = []

    def fail(lease: Lease) -> None:  # whatever goes wrong in the thread, the other leases need it
        stuck.append(lease)
        raise ValueError("it cannot even be described")

    await queue.add([Add(A), Add(B)])
    async with (
        beating(valkey_url, Losses(), on_stuck=fail) as heartbeat,
        foreign_reaper(valkey_url) as recovered,
    ):
        leases = await queue.take(2)
        heartbeat.hold(leases, at_most=timedelta(seconds=LEASE))
        heartbeat.outlive(leases[1])  # this one has returned
        await eventually(lambda: sum(recovered) == 1)
        assert stuck == leases[:1]
        assert [lease.request for lease in await queue.processing()] == [leases[1].request]


async def test_q5_a_handler_that_blocks_its_process_for_ever_ends_it(valkey_url: str):
    process = await asyncio.create_subprocess_exec(
        *module("scripts.stuck_heartbeat", valkey_url),
        stdout=subprocess.DEVNULL,
    )
    try:
        assert await asyncio.wait_for(process.wait(), 20) == 70
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
