"""Many items at once, and an add that takes, leave the queue as single steps do (Q1, Q4, Q9)."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Add, Backoff, Lease, Priority, QueuePolicy
from fleetbus.workqueue.scripts import Ending, Limits, Transitions

CLUSTERS = ("eu1", "us1")
_LONG = Backoff(timedelta(hours=1), 1, timedelta(hours=1))
POLICY = QueuePolicy(breaker=1, backoff=_LONG, breaker_pause=_LONG)
_TIME = re.compile(rb"\d{13,}")
_GENERATION = re.compile(rb"tok-\w+")


class OneOfTwo:
    """One of two queues to which the same happens, in one step or item by item."""

    def __init__(self, redis: Redis, name: str, *, in_one_step: bool) -> None:
        self._redis = redis
        self._name = name
        self._calls = Transitions(name, POLICY)
        self._in_one_step = in_one_step

    def _request(self, number: int) -> Request:
        return Request(self._name, CLUSTERS[number % 2], "prod", f"pod-{number}")

    async def add(self, adds: Sequence[tuple[int, int, str]], token: str, limits: Limits) -> Any:
        """Add (number, band, cause), and take up to five."""
        items = [
            Add(self._request(n), Priority(band), b"7/%d" % n, "", cause) for n, band, cause in adds
        ]
        if self._in_one_step:
            taking = self._calls.taking(token, 5, limits)
            *_, taken = await self._calls.add(items, taking).send(self._redis)
            return self._shown(taken)
        for item in items:
            await self._calls.add([item]).send(self._redis)
        return self._shown(await self._calls.take(token, 5, limits).send(self._redis))

    async def delay(self, number: int) -> None:
        await self._calls.add_after(self._request(number), POLICY.lease).send(self._redis)

    async def end(self, count: int) -> None:
        """End so many leases, every other one with a note."""
        leases = await self._leases(count)
        notes = {lease.request: b"note" for lease in leases[::2]}
        batches = [leases] if self._in_one_step else [[lease] for lease in leases]
        for batch in batches:
            answer = await self._calls.done(Ending(batch, notes)).send(self._redis)
            assert answer[0] == []

    async def fail(self) -> None:
        """Let one lease end because its cluster was unreachable: its breaker opens."""
        for lease in await self._leases(1):
            await self._calls.retry(lease, unreachable=True).send(self._redis)

    async def _leases(self, count: int) -> list[Lease]:
        processing, _ = await self._calls.list_held(100).send(self._redis)
        return [
            cast("Any", SimpleNamespace(request=self._calls.request(item), fence=fence.decode()))
            for item, fence, _ in sorted(processing)[:count]
        ]

    async def dump(self) -> dict[str, Any]:
        """All keys, with times and generations made equal."""
        content: dict[str, Any] = {}
        redis = cast("Any", self._redis)
        async for key in redis.scan_iter(f"fleetbus:{{q:{self._name}}}*"):
            kind = await redis.type(key)
            values: Any = (
                await redis.hgetall(key)
                if kind == b"hash"
                else dict(await redis.zrange(key, 0, -1, withscores=True))
            )
            suffix: str = key.decode().partition("}:")[2]
            is_time = suffix.startswith("ready") or suffix in {"leases", "delayed", "breakers"}
            content[suffix] = {k: b"" if is_time else _plain(v) for k, v in values.items()}
        content.pop("turns:0", None)  # a virtual time may differ: nobody else takes turns
        return content

    def _shown(self, answer: Any) -> Any:
        if not answer or not answer[2]:
            return None
        due, is_at_capacity, _, *fields = answer
        leases = [fields[at : at + 9] for at in range(0, len(fields), 9)]
        return (
            due >= 0,
            is_at_capacity,
            sorted([_plain(field) for field in lease] for lease in leases),
        )


def _plain(value: Any) -> bytes:
    return _GENERATION.sub(
        b"G", _TIME.sub(b"T", value if isinstance(value, bytes) else b"%d" % value)
    )


@pytest.mark.parametrize("seed", range(12))
async def test_q1_the_same_leases_and_the_same_queue(redis: Redis, seed: int):
    rng = random.Random(seed)
    both = [OneOfTwo(redis, "one", in_one_step=True), OneOfTwo(redis, "two", in_one_step=False)]
    limits = rng.choice([Limits.of(None, None, None), Limits.of({"eu1": 1}, 2, 1)])
    for step in range(8):
        adds = [
            (rng.randrange(12), rng.choice([0, 0, 1, 2]), rng.choice(["", "", "", "us1"]))
            for _ in range(rng.choice([1, 1, 2, 7]))
        ]
        answers = [await queue.add(adds, f"tok-{seed}x{step}", limits) for queue in both]
        assert answers[0] == answers[1], (step, adds)
        happens = rng.random()
        for queue in both:
            if happens < 0.1:
                await queue.delay(99)
            elif happens < 0.15:
                await queue.fail()
            elif happens < 0.7:
                await queue.end(3)
        first, two = [await queue.dump() for queue in both if step % 4 == 3] or ({}, {})
        assert first == two, (step, adds)
