"""Both queues against a small model of client-go's queue (rule Q1), by random steps.

A minute of the queue is a second here: times are large, so that the few milliseconds a step takes
on a real server decide nothing. `make scenarios` makes the 20,000 steps of rule Q1, the default run
fewer, and `FLEETBUS_QUEUE_STEPS` asks for any number.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
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

from fleetbus.workqueue import Add, Backoff, LeaseLostError, Priority, QueuePolicy, scripts
from fleetbus.workqueue import memory_breakers as outages
from support.full import FULL
from support.stores.workqueue import MemoryRig, RedisRig, Rig, named

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fleetbus.reconcile import Request
    from fleetbus.workqueue import Lease

STEPS = 40
"""Most steps of one example."""
WANTED = int(os.environ.get("FLEETBUS_QUEUE_STEPS", "20000" if FULL else "500"))
"""Least steps of all examples."""
JITTER = 0.9
# Steps of time are multiples of 500 s; nothing ends on one.
POLICY = QueuePolicy(
    lease=timedelta(seconds=10_130),
    backoff=Backoff(timedelta(seconds=1100.7), 2, timedelta(seconds=100_100.7)),
    quarantine=Backoff(timedelta(seconds=60_200), 2, timedelta(seconds=250_200)),
    reclaim_window=timedelta(seconds=200_100),
    breaker=2,
    breaker_pause=Backoff(timedelta(seconds=3_000), 2, timedelta(seconds=47_000)),
    note_age=timedelta(days=10_000),
)
CLUSTERS = ["c0", "c1", "c2"]
CAUSED = "c2"
"""Only its requests are caused by others, and it always answers: which of them a take puts off
while their own cluster does not answer depends on whose turn it is."""
CHARGED = [*CLUSTERS, "far"]
REQUESTS = [named(name, cluster=cluster) for cluster in CLUSTERS for name in ("a", "b", "c")]
requests = st.sampled_from(REQUESTS)
causes = st.sampled_from(["", *CHARGED])
picks = st.integers(0, 30)


@dataclass
class Key:
    """client-go's sets, seen from one key, and what rules Q5 to Q8 add."""

    dirty: Priority | None = None
    """The band of a dirty key."""
    band: Priority = Priority.LIVE
    """Band of the run that is processed."""
    note: bytes = b""
    cause: str = ""
    """The cluster whose change caused it, if that is another one (rule Q9)."""
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
        return self.dirty is not None and self.fence is None and self.kept_until is None

    def bill(self, cause: str) -> None:
        """Its own cluster pays once it asks; else whoever made it dirty."""
        if self.dirty is None or not cause:
            self.cause = cause

    def mark_dirty(self, band: Priority) -> None:
        self.dirty = band if self.dirty is None else min(band, self.dirty)


@dataclass
class Outage:
    """The breaker of one cluster, and the failures that led to it (rule Q9)."""

    failures: int = 0
    opened: int = 0
    probe: str | None = None
    until: float | None = None
    """When a probe may go, unless one is under way; None while the breaker is closed."""


class QueueMachine(RuleBasedStateMachine):
    """Random calls on a real queue; the model says what each must answer."""

    rig: Rig
    runner: asyncio.Runner
    steps = 0
    """Steps of all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.keys = {request: Key() for request in REQUESTS}
        self.outages = {cluster: Outage() for cluster in CLUSTERS}
        self.leases: list[Lease] = []  # all that were ever handed out, also the stale ones
        self.tokens: list[str] = []

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def is_current(self, lease: Lease) -> bool:
        return self.keys[lease.request].fence == lease.fence

    @rule(items=st.lists(st.tuples(requests, st.sampled_from(Priority), causes), max_size=8))
    def add(self, items: list[tuple[Request, Priority, str]]) -> None:
        adds = [
            Add(request, priority, cause=cause if request.cluster == CAUSED else "")
            for request, priority, cause in items
        ]
        self.run(self.rig.queue.add(adds))
        for addition in adds:
            key = self.keys[addition.request]
            key.bill("" if addition.cause == addition.request.cluster else addition.cause)
            key.mark_dirty(addition.priority)

    @rule(weights=st.dictionaries(st.sampled_from(CLUSTERS), st.sampled_from([0.5, 3, 100])))
    def weigh(self, weights: dict[str, float]) -> None:
        self.rig.queue.weigh(weights)  # it is about the order alone

    @rule(request=requests, seconds=st.sampled_from([0, 2_250, 50_250]))
    def add_after(self, request: Request, seconds: int) -> None:
        self.run(self.rig.queue.add_after(request, timedelta(seconds=seconds)))
        self.delay(self.keys[request], seconds)

    @rule(
        limit=st.integers(1, 8),
        capacity=st.dictionaries(st.sampled_from(CHARGED), st.integers(0, 2)),
        default=st.sampled_from([None, 1, 2]),
        probes=st.sampled_from([None, 0, 1]),
    )
    def take(
        self, limit: int, capacity: dict[str, int], default: int | None, probes: int | None
    ) -> None:
        token = f"t{len(self.tokens)}"
        self.tokens.append(token)
        leases: list[Lease] = self.run(
            self.rig.queue.take(
                limit, token=token, capacity=capacity, default_capacity=default, probes=probes
            )
        )
        self.promote()
        most = {
            cluster: capacity.get(cluster, 9 if default is None else default) for cluster in CHARGED
        }
        probing = [lease for lease in leases if lease.is_probe]
        expected = self.check_probes(probing, min(limit, 9 if probes is None else probes), most)
        for lease in probing:
            most[lease.charged_cluster] -= 1
        others = Counter(lease.charged_cluster for lease in leases if not lease.is_probe)
        ready = Counter(
            self.charged(request) for request in self.ready() if self.is_in_turn(request)
        )
        assert all(count <= most[cluster] for cluster, count in others.items())
        assert others.total() == min(
            limit - expected, sum(min(most[name], count) for name, count in ready.items())
        )
        assert len({lease.request for lease in leases}) == len(leases)
        for lease in leases:
            self.begin(lease)
        self.leases += leases

    def check_probes(self, probing: list[Lease], limit: int, most: dict[str, int]) -> int:
        """One item of each open breaker that is due, of its highest band; answers how many."""
        ready = self.ready()
        due = {
            request.cluster: min(self.keys[r].dirty or 0 for r in ready if same(r, request))
            for request in ready
            if self.is_due(request.cluster) and most[request.cluster] > 0
        }
        assert (
            len(probing)
            == len({lease.request.cluster for lease in probing})
            == min(limit, len(due))
        )
        assert all(due[lease.request.cluster] == lease.priority for lease in probing)
        return len(probing)

    def begin(self, lease: Lease) -> None:
        key = self.keys[lease.request]
        assert key.is_ready
        assert (lease.attempt, lease.priority, lease.note) == (key.failures, key.dirty, key.note)
        assert lease.cause == key.cause
        key.dirty, key.band, key.fence = None, lease.priority, lease.fence
        key.lease_ends, key.suspected = self.now + POLICY.lease.total_seconds(), None
        if lease.is_probe:
            self.outages[lease.request.cluster].probe = lease.fence

    @rule(pick=picks)
    def take_again(self, pick: int) -> None:
        current = [lease for lease in self.leases if self.is_current(lease)]
        if not current:
            return
        fence = current[pick % len(current)].fence
        expected = {lease.request for lease in current if lease.fence == fence}
        again: list[Lease] = self.run(self.rig.queue.take(8, token=fence.split(".")[1]))
        assert {lease.request for lease in again} == expected
        for lease in again:
            assert lease.note == self.keys[lease.request].note
            assert lease.is_probe == (self.outages[lease.request.cluster].probe == fence)
            self.renew(self.keys[lease.request])

    @rule(pick=picks, count=st.integers(1, 3), note=st.sampled_from([b"", b"one", b"two"]))
    def done(self, pick: int, count: int, note: bytes) -> None:
        leases = self.some_leases(pick, count)
        notes = {lease.request: note for lease in leases if note}
        refused = self.run(self.rig.queue.done(leases, notes))
        assert refused == [lease for lease in leases if not self.is_current(lease)]
        for lease in leases:
            if lease not in refused:
                key = self.keys[lease.request]
                if not key.failures:
                    self.outages[lease.request.cluster] = Outage()
                self.end_lease(lease.request)
                key.reclaims, key.quarantines, key.note = [], 0, note
                if key.dirty is None and key.due is None:
                    key.cause = ""

    @rule(pick=picks)
    def give_back(self, pick: int) -> None:
        for lease in self.some_leases(pick, 1):
            refused = self.run(self.rig.queue.give_back([lease]))
            assert (refused == []) == self.is_current(lease)
            if not refused:
                self.end_lease(lease.request)
                self.keys[lease.request].mark_dirty(lease.priority)

    @rule(pick=picks, unreachable=st.booleans())
    def retry(self, pick: int, unreachable: bool) -> None:
        for lease in self.some_leases(pick, 1):
            key = self.keys[lease.request]
            unreachable = unreachable and lease.request.cluster != CAUSED
            if not self.is_current(lease):
                with pytest.raises(LeaseLostError):
                    self.run(self.rig.queue.retry(lease, unreachable=unreachable))
                continue
            key.failures += 1
            delay: timedelta = self.run(self.rig.queue.retry(lease, unreachable=unreachable))
            expected = POLICY.backoff.delay(key.failures)
            if unreachable:
                expected = min(expected, POLICY.breaker_pause.limit)
            assert delay == expected
            self.delay(key, delay.total_seconds())
            if unreachable:
                self.count_unreachable(lease)
            elif self.outages[lease.request.cluster].probe == lease.fence:
                opened = self.outages[lease.request.cluster].opened
                self.outages[lease.request.cluster] = Outage(POLICY.breaker - 1, opened)

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

    @rule(seconds=st.sampled_from([3_000, 120_000]))
    def turn_back(self, seconds: int) -> None:
        self.run(self.rig.turn_back(timedelta(seconds=seconds)))  # Q8: nothing waits longer for it

    @rule()
    def reap(self) -> None:
        reaped = self.run(self.rig.queue.reap())
        quarantined = {request for request in REQUESTS if self.reap_key(request)}
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
        ready = Counter(
            (self.charged(request), self.keys[request].dirty) for request in self.ready()
        )
        assert stats.depth == ready
        assert stats.processing == sum(key.fence is not None for key in keys)
        assert stats.delayed == sum(key.due is not None for key in keys)
        assert stats.quarantined == sum(key.kept_until is not None for key in keys)
        clusters = (
            request.cluster for request, key in self.keys.items() if key.kept_until is not None
        )
        assert stats.kept == Counter(clusters)
        assert {
            breaker.cluster: (breaker.failures, breaker.opened, breaker.is_probing)
            for breaker in stats.breakers
        } == {
            name: (outage.failures, outage.opened, outage.probe is not None)
            for name, outage in self.outages.items()
            if outage.until is not None
        }
        type(self).steps += 1

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

    def end_lease(self, request: Request) -> None:
        key, outage = self.keys[request], self.outages[request.cluster]
        if outage.probe is not None and outage.probe == key.fence:
            outage.probe, outage.until = None, self.now
        key.fence, key.suspected = None, None

    def count_unreachable(self, lease: Lease) -> None:
        outage = self.outages[lease.request.cluster]
        outage.failures += 1
        if outage.until is None:
            is_opened = outage.failures >= POLICY.breaker
        else:
            is_opened = outage.probe == lease.fence
        if is_opened:
            outage.opened, outage.probe = outage.opened + 1, None
            pause = POLICY.breaker_pause.delay(outage.opened).total_seconds()
            outage.until = self.now + JITTER * pause

    def ready(self) -> list[Request]:
        return [request for request, key in self.keys.items() if key.is_ready]

    def charged(self, request: Request) -> str:
        return self.keys[request].cause or request.cluster

    def is_in_turn(self, request: Request) -> bool:
        """A breaker bars what its cluster's own changes caused there, nothing elsewhere."""
        return bool(self.keys[request].cause) or self.outages[request.cluster].until is None

    def is_due(self, cluster: str) -> bool:
        outage = self.outages[cluster]
        return outage.until is not None and outage.probe is None and outage.until <= self.now

    def promote(self) -> None:
        for key in self.keys.values():
            if key.due is not None and key.due <= self.now:
                key.due = None
                key.mark_dirty(Priority.RETRY)
            if key.kept_until is not None and key.kept_until <= self.now:
                key.kept_until = None

    def reap_key(self, request: Request) -> bool:
        """Rules Q6 and Q7 for one key; whether it went into quarantine."""
        key = self.keys[request]
        if key.fence is None or key.lease_ends > self.now:
            return False
        if key.suspected is None:
            key.suspected = self.now
            return False
        if self.now - key.suspected < POLICY.grace.total_seconds():
            return False
        window = self.now - POLICY.reclaim_window.total_seconds()
        self.end_lease(request)
        key.mark_dirty(key.band)
        key.reclaims = [*(at for at in key.reclaims if at > window), self.now]
        if key.quarantines == 0 and len(key.reclaims) < POLICY.reclaims:
            return False
        key.quarantines += 1
        key.kept_until = self.now + POLICY.quarantine.delay(key.quarantines).total_seconds()
        return True


@pytest.mark.slow
@pytest.mark.longer
@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_q1_random_calls_agree_with_the_model(
    kind: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    compare(kind, valkey_url, WANTED, monkeypatch)


@pytest.mark.stores("redis")
def test_q1_a_few_random_calls_agree_on_redis_too(valkey_url: str, monkeypatch: pytest.MonkeyPatch):
    compare("redis", valkey_url, 2 * STEPS, monkeypatch)


def compare(kind: str, valkey_url: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make at least so many random calls."""
    for module in (scripts, outages):  # its bounds have a test of their own
        monkeypatch.setattr(module, "jitter", lambda: JITTER)
    with asyncio.Runner() as runner:
        redis = Redis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))

        class Machine(QueueMachine):
            def __init__(self) -> None:
                super().__init__()
                self.runner = runner
                runner.run(empty(redis))
                self.rig = new_rig(kind, redis)

        chosen = settings(
            max_examples=max(1, min(steps // STEPS, 100)),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        try:
            while Machine.steps < steps:
                run_state_machine_as_test(Machine, settings=chosen)
        finally:
            runner.run(redis.aclose())


def same(request: Request, other: Request) -> bool:
    return request.cluster == other.cluster


async def empty(redis: Redis) -> None:
    await redis.flushdb()


def new_rig(kind: str, redis: Redis) -> Rig:
    return RedisRig(redis, "copier", POLICY) if kind == "redis" else MemoryRig("copier", POLICY)
