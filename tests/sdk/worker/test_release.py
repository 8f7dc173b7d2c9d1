"""A lease ends when the store has confirmed it, and not before (rules Q5, Q12)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from fleetbus.errors import LeaseLostError
from fleetbus.run.current import Run, current_run
from fleetbus.workqueue import Add, RedisQueue
from support.eventually import eventually
from support.hostile.chaos_proxy import chaos_link
from support.rigs.worker import FIRST, POLICY, Notes, is_empty, working

if TYPE_CHECKING:
    from fleetbus.reconcile import Request

SHORT = replace(POLICY, lease=timedelta(milliseconds=600))


async def test_q5_a_lease_is_renewed_until_the_store_has_received_the_end_of_its_run(
    redis: Redis, valkey_url: str
) -> None:
    runs: list[Run] = []

    async def act(_request: Request) -> None:
        run = current_run()
        assert run is not None
        run.require_lease()
        runs.append(run)
        link.hold()

    async def is_renewed_since(second: int, micros: int) -> bool:
        ends = await redis.zscore("fleetbus:{q:copier}:leases", "c1/ns/a")
        least = second * 1e6 + micros + SHORT.lease / timedelta(microseconds=1)
        return ends is not None and float(ends) > least

    notes = Notes(act)
    async with chaos_link(int(valkey_url.rpartition(":")[2])) as link:
        slow = Redis.from_url(f"redis://127.0.0.1:{link.port}")
        queue = RedisQueue(slow, "copier", policy=SHORT)
        async with working(queue, valkey_url, notes):
            await RedisQueue(redis, "copier", policy=SHORT).add([Add(FIRST)])
            await eventually(lambda: notes.finished)
            over = await redis.time()
            await eventually(lambda: is_renewed_since(*over))
            with pytest.raises(LeaseLostError):  # what the function left running writes no more
                runs[0].require_lease()
            link.heal()
            await eventually(lambda: is_empty(queue))
        await queue.aclose()
        await slow.aclose()
    assert notes.runs() == 1


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_a_store_that_hangs(valkey_url: str) -> None:
    async def act(_request: Request) -> None:
        link.hold()

    notes = Notes(act)
    async with chaos_link(int(valkey_url.rpartition(":")[2])) as link:
        slow = Redis.from_url(f"redis://127.0.0.1:{link.port}", socket_timeout=30)
        queue = RedisQueue(slow, "copier", policy=POLICY)
        await queue.add([Add(FIRST)])
        async with working(queue, valkey_url, notes) as worker:
            await eventually(lambda: notes.finished)
            worker.stop()
            await eventually(worker.task.done, within=timedelta(seconds=10))
        await queue.aclose()
        await slow.aclose()


async def test_q6_the_reaper_comes_often_enough_for_a_short_lease(
    redis: Redis, valkey_url: str
) -> None:
    brief = replace(POLICY, lease=timedelta(milliseconds=200))
    queue = RedisQueue(redis, "copier", policy=brief)
    await queue.add([Add(FIRST)])
    assert len(await queue.take(1)) == 1  # by an owner that dies here
    notes = Notes()
    async with working(queue, valkey_url, notes):
        await eventually(lambda: notes.finished, within=timedelta(seconds=5))
    await queue.aclose()
