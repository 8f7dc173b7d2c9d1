"""A lease that is over before its run begins is given back (rule Q5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.reconcile import Request
from fleetbus.run.current import current_run
from fleetbus.workqueue import Add, Heartbeat, RedisQueue
from fleetbus.workqueue.queue import Lease, Room
from support.eventually import eventually
from support.rigs.worker import FIRST, POLICY, SECOND, Notes, is_empty, working

SHORT = replace(POLICY, lease=timedelta(milliseconds=400))


class BlockedAfterTaking(RedisQueue):
    """Another run blocks the event loop once, between an answer and the worker's look at it."""

    def __init__(self, *arguments: Any, blocks: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.blocks = blocks * SHORT.lease.total_seconds()

    async def serve(
        self, room: Room, start: Callable[[Sequence[Lease]], None], *, wait: timedelta
    ) -> None:
        def start_later(leases: Sequence[Lease]) -> None:
            time.sleep(self.blocks)  # it blocks the loop: that is the point
            self.blocks = 0.0
            start(leases)

        await super().serve(room, start_later, wait=wait)


@pytest.mark.parametrize("blocks", [1.25, 0.9])
async def test_q5_no_run_begins_under_a_lease_that_is_over_or_nearly_and_its_request_goes_back(
    redis: Redis, valkey_url: str, blocks: float
) -> None:
    holds: list[bool] = []

    async def look(_request: Request) -> None:
        run = current_run()
        holds.append(run is not None and run.holds())

    notes = Notes(look)
    async with aclosing(BlockedAfterTaking(redis, "copier", policy=SHORT, blocks=blocks)) as queue:
        await queue.add([Add(FIRST), Add(SECOND)])
        async with working(queue, valkey_url, notes):
            await eventually(lambda: {FIRST, SECOND} <= set(notes.finished))
            await eventually(lambda: is_empty(queue))
    assert holds == [True, True]


class LostAtOnce(Heartbeat):
    """Its thread finds the first lease lost before the task of the run has had a turn."""

    def __init__(self, *arguments: Any, on_lost: Callable[[Lease], None], **more: Any) -> None:
        super().__init__(*arguments, on_lost=on_lost, **more)
        self.report, self.is_first = on_lost, True

    def hold(self, leases: Iterable[Lease], *, at_most: timedelta | None = None) -> None:
        leases = list(leases)
        super().hold(leases, at_most=at_most)
        for lease in leases if self.is_first else ():
            asyncio.get_running_loop().call_soon(self.report, lease)
        self.is_first = False


async def test_q5_a_lease_that_is_lost_before_its_run_begins_frees_the_only_slot(
    redis: Redis, valkey_url: str
) -> None:
    notes = Notes()
    async with aclosing(RedisQueue(redis, "copier", policy=POLICY)) as queue:
        await queue.add([Add(FIRST), Add(SECOND)])
        async with working(queue, valkey_url, notes, heartbeat=LostAtOnce, concurrency=1):
            await eventually(lambda: {FIRST, SECOND} <= set(notes.finished))
            await eventually(lambda: is_empty(queue))
