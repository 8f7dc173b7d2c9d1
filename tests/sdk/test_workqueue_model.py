"""Both queues against a small model of client-go's queue (rule Q1), by random steps.

A minute of the queue is a second here: times are large, so that the few milliseconds a step takes
on a real server decide nothing. `FLEETBUS_QUEUE_STEPS` asks for more steps than the quick default;
rule Q1 wants 20,000 before a release.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from workqueue_rig import MemoryRig, RedisRig, Rig, named

from fleetbus.workqueue import Add, Backoff, LeaseLostError, Priority, QueuePolicy

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fleetbus.reconcile import Request
    from fleetbus.workqueue import Lease

STEPS = 40
EXAMPLES = int(os.environ.get("FLEETBUS_QUEUE_STEPS", "600")) // STEPS
# Steps of time are multiples of 500 s; nothing ends on one.
POLICY = QueuePolicy(
    lease=timedelta(seconds=10_130),
    backoff=Backoff(timedelta(seconds=1100.7), 2, timedelta(seconds=100_100.7)),
    quarantine=Backoff(timedelta(seconds=60_200), 2, timedelta(seconds=250_200)),
    reclaim_window=timedelta(seconds=200_100),
)
REQUESTS = [named(name, cluster=f"c{n}") for n in range(3) for name in ("a", "b")]
requests = st.sampled_from(REQUESTS)
picks = st.integers(0, 30)


@dataclass
class Key:
    """client-go's sets, seen from one key, and what rules Q5 to Q8 add."""

    dirty: bool = False
    due: float | None = None
    fence: str | None = None
    lease_ends: float = 0
    suspected: float | None = None
    failures: int = 0
    reclaims: list[float] = field(default_factory=list[float])
    quarantines: int = 0
    kept_until: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.dirty and self.fence is None and self.kept_until is None


class QueueMachine(RuleBasedStateMachine):
    """Random calls on a real queue; the model says what each must answer."""

    rig: Rig
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.keys = {request: Key() for request in REQUESTS}
        self.leases: list[Lease] = []  # all that were ever handed out, also the stale ones
        self.tokens: list[str] = []

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def is_current(self, lease: Lease) -> bool:
        return self.keys[lease.request].fence == lease.fence

    @rule(items=st.lists(st.tuples(requests, st.sampled_from(Priority)), max_size=8))
    def add(self, items: list[tuple[Request, Priority]]) -> None:
        self.run(self.rig.queue.add([Add(request, priority) for request, priority in items]))
        for request, _ in items:
            self.keys[request].dirty = True

    @rule(request=requests, seconds=st.sampled_from([0, 2_250, 50_250]))
    def add_after(self, request: Request, seconds: int) -> None:
        self.run(self.rig.queue.add_after(request, timedelta(seconds=seconds)))
        self.delay(self.keys[request], seconds)

    @rule(limit=st.integers(1, 8))
    def take(self, limit: int) -> None:
        token = f"t{len(self.tokens)}"
        self.tokens.append(token)
        leases: list[Lease] = self.run(self.rig.queue.take(limit, token=token))
        self.promote()
        ready = {request for request, key in self.keys.items() if key.is_ready}
        taken = {lease.request for lease in leases}
        assert taken <= ready
        assert len(leases) == len(taken) == min(limit, len(ready))
        for lease in leases:
            key = self.keys[lease.request]
            assert lease.attempt == key.failures
            key.dirty, key.fence = False, lease.fence
            key.lease_ends, key.suspected = self.now + POLICY.lease.total_seconds(), None
        self.leases += leases

    @rule(pick=picks)
    def take_again(self, pick: int) -> None:
        current = [lease for lease in self.leases if self.is_current(lease)]
        if not current:
            return
        fence = current[pick % len(current)].fence
        expected = {lease.request for lease in current if lease.fence == fence}
        again: list[Lease] = self.run(self.rig.queue.take(8, token=fence.split(".")[1]))
        assert {lease.request for lease in again} == expected
        for request in expected:
            self.renew(self.keys[request])

    @rule(pick=picks, count=st.integers(1, 3))
    def done(self, pick: int, count: int) -> None:
        leases = self.some_leases(pick, count)
        refused = self.run(self.rig.queue.done(leases))
        assert refused == [lease for lease in leases if not self.is_current(lease)]
        for lease in leases:
            if lease not in refused:
                self.release_fence(self.keys[lease.request])

    @rule(pick=picks)
    def give_back(self, pick: int) -> None:
        for lease in self.some_leases(pick, 1):
            refused = self.run(self.rig.queue.give_back([lease]))
            assert (refused == []) == self.is_current(lease)
            if not refused:
                self.keys[lease.request].fence = None
                self.keys[lease.request].dirty = True

    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        for lease in self.some_leases(pick, 1):
            key = self.keys[lease.request]
            if not self.is_current(lease):
                with pytest.raises(LeaseLostError):
                    self.run(self.rig.queue.retry(lease))
                continue
            key.failures += 1
            delay: timedelta = self.run(self.rig.queue.retry(lease))
            assert delay == POLICY.backoff.delay(key.failures)
            self.delay(key, delay.total_seconds())

    @rule(pick=picks, seconds=st.sampled_from([None, 250, 20_250]))
    def forget_or_requeue(self, pick: int, seconds: int | None) -> None:
        for lease in self.some_leases(pick, 1):
            if seconds is None:
                call = self.rig.queue.forget(lease)
            else:
                call = self.rig.queue.requeue_after(lease, timedelta(seconds=seconds))
            if not self.is_current(lease):
                with pytest.raises(LeaseLostError):
                    self.run(call)
                continue
            self.run(call)
            key = self.keys[lease.request]
            key.failures = 0
            if seconds is not None:
                self.delay(key, seconds)

    @rule(pick=picks, count=st.integers(1, 4))
    def extend(self, pick: int, count: int) -> None:
        leases = self.some_leases(pick, count)
        refused = self.run(self.rig.queue.extend(leases))
        assert refused == [lease for lease in leases if not self.is_current(lease)]
        for lease in leases:
            if lease not in refused:
                self.renew(self.keys[lease.request])

    @rule(seconds=st.sampled_from([500, 3_000, 12_000, 120_000]))
    def advance(self, seconds: int) -> None:
        self.run(self.rig.advance(timedelta(seconds=seconds)))
        self.now += seconds

    @rule()
    def reap(self) -> None:
        reaped = self.run(self.rig.queue.reap())
        quarantined = {request for request, key in self.keys.items() if self.reap_key(key)}
        assert set(reaped.quarantined) == quarantined

    @rule(request=requests)
    def release(self, request: Request) -> None:
        key = self.keys[request]
        assert self.run(self.rig.queue.release(request)) == (key.kept_until is not None)
        if key.kept_until is not None:
            key.kept_until, key.reclaims, key.quarantines = None, [], 0

    @invariant()
    def counts_agree(self) -> None:
        stats = self.run(self.rig.queue.stats())
        keys = self.keys.values()
        assert sum(stats.depth.values()) == sum(key.is_ready for key in keys)
        assert stats.processing == sum(key.fence is not None for key in keys)
        assert stats.delayed == sum(key.due is not None for key in keys)
        assert stats.quarantined == sum(key.kept_until is not None for key in keys)

    def teardown(self) -> None:
        """Run everything to its end: nothing may be left (rule Q2)."""
        self.run(self.drain())
        assert self.run(self.rig.is_empty())
        self.run(self.rig.queue.aclose())

    async def drain(self) -> None:
        queue = self.rig.queue
        for request in REQUESTS:
            await queue.release(request)
        await queue.done([lease for lease in self.leases if self.is_current(lease)])
        await self.rig.advance(timedelta(days=10))
        # A failure count outlives its run until a success, so each key is run once more.
        await queue.add([Add(request) for request in REQUESTS])
        while leases := await queue.take(8):
            for lease in leases:
                await queue.forget(lease)
            assert await queue.done(leases) == []

    # --- the model ----------------------------------------------------------------------------

    def some_leases(self, pick: int, count: int) -> list[Lease]:
        """Mostly current ones: stale ones pile up."""
        current = [lease for lease in self.leases if self.is_current(lease)]
        pool = current if pick % 3 and current else self.leases
        chosen = [pool[(pick + n) % len(pool)] for n in range(count)] if pool else []
        return list(dict.fromkeys(chosen))

    def delay(self, key: Key, seconds: float) -> None:
        due = self.now + seconds
        key.due = due if key.due is None else min(key.due, due)

    def renew(self, key: Key) -> None:
        key.lease_ends, key.suspected = self.now + POLICY.lease.total_seconds(), None

    def release_fence(self, key: Key) -> None:
        key.fence, key.reclaims, key.quarantines = None, [], 0

    def promote(self) -> None:
        for key in self.keys.values():
            if key.due is not None and key.due <= self.now:
                key.due, key.dirty = None, True
            if key.kept_until is not None and key.kept_until <= self.now:
                key.kept_until = None

    def reap_key(self, key: Key) -> bool:
        """Rules Q6 and Q7 for one key; whether it went into quarantine."""
        if key.fence is None or key.lease_ends > self.now:
            return False
        if key.suspected is None:
            key.suspected = self.now
            return False
        if self.now - key.suspected < POLICY.grace.total_seconds():
            return False
        window = self.now - POLICY.reclaim_window.total_seconds()
        key.fence, key.dirty, key.suspected = None, True, None
        key.reclaims = [*(at for at in key.reclaims if at > window), self.now]
        if key.quarantines == 0 and len(key.reclaims) < POLICY.reclaims:
            return False
        key.quarantines += 1
        key.kept_until = self.now + POLICY.quarantine.delay(key.quarantines).total_seconds()
        return True


@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_q1_random_calls_agree_with_the_model(kind: str, valkey_url: str):
    with asyncio.Runner() as runner:
        redis = Redis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))

        class Machine(QueueMachine):
            def __init__(self) -> None:
                super().__init__()
                self.runner = runner
                runner.run(empty(redis))
                self.rig = new_rig(kind, redis)

        chosen = settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        try:
            run_state_machine_as_test(Machine, settings=chosen)
        finally:
            runner.run(redis.aclose())


async def empty(redis: Redis) -> None:
    await redis.flushdb()


def new_rig(kind: str, redis: Redis) -> Rig:
    return RedisRig(redis, "copier", POLICY) if kind == "redis" else MemoryRig("copier", POLICY)
