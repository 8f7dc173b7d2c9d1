"""Grants epochs to watchers, few at a time over the whole fleet (rule W7).

What runs is recorded in the grant keys, so a restarted projector, or a second one, continues from
what it reads there. A turn of the loop: read the keys that were written, remove what is finished,
grant what fits in the order of the requests, and send keep-alives to those who wait. A grant ends
when the end of its epoch has been read from the stream, when its watcher withdraws the request, or
when nothing of it arrives any more.

A watcher can write its own answers. So the order of requests is the one this process has seen, and
what runs counts as no more than the share of its cluster unless this process has granted it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import Counter, Gauge
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.watchers.grant_requests import (
    NOT_READ,
    GrantAnswer,
    GrantRequestsContended,
    change_grant_requests,
    notify_granted,
    read_grant_requests,
)
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import KV_GRANTS
from fleetbus_proto.subjects import Verb
from fleetbus_reconciler.list_grants.allotment import (
    Allotment,
    StreamCapacity,
    WaitBudget,
    measure_capacity,
)
from fleetbus_reconciler.list_grants.decisions import Candidate, CandidateId, Decisions, Epoch
from fleetbus_reconciler.list_grants.grant_keys import CONCURRENCY, GrantKeys, chunks
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import ReconcilerTiming

log = structlog.get_logger()

_MEASURE_INTERVAL: Final = timedelta(milliseconds=50)
_ENDS_KEPT: Final = timedelta(minutes=1)
"""The end of a short epoch may be read before its request shows that it has begun."""
_KEEP_ALIVES: Final = 4
"""Within the patience of a watcher that waits."""
_MIN_KEEP_ALIVE_MS: Final = 250
"""However short the patience that it claims."""

WAITING: Final = Gauge("fleetbus_epochs_waiting", "Epochs that watchers request, not granted yet.")
RUNNING: Final = Gauge("fleetbus_epochs_granted", "Epochs that run, as far as the projector knows.")
GRANTED_BYTES: Final = Gauge(
    "fleetbus_epochs_granted_bytes", "Bytes of the stream granted to running epochs."
)
EXPIRED: Final = Counter(
    "fleetbus_grants_expired_total", "Grants revoked because nothing of their epoch arrived."
)


@dataclass(slots=True)
class _RequestState:
    """The knowledge of this process about a request, whatever the bucket contains.

    Attributes:
        received: when it was first seen, in ms: its place in the queue.
        granted: the bytes that we have granted; None if we have granted nothing.
    """

    received: int
    granted: int | None = None


@dataclass(slots=True)
class _RunState:
    """Since when a running request is known, and what must be read before it counts as dead."""

    since: float
    read_to: int | None = None


class Granter:
    """Decides about the grant requests of all watchers.

    Args:
        bus: to measure the stream, and to notify watchers.
        kv: the bucket.
        reader: to count the known objects of a resource.
        settings: limits.
        timing: when it decides, and how long it waits for whoever was granted.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        kv: KeyValue,
        reader: SnapshotReader,
        settings: ReconcilerSettings,
        timing: ReconcilerTiming,
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._reader = reader
        self._settings = settings
        self._timing = timing
        self._changed = asyncio.Event()
        self._keys = GrantKeys(bus=bus, kv=kv, on_write=self._changed.set)
        # Epochs whose end was read from the stream, and when: also those that nobody granted.
        self._ended: dict[Epoch, float] = {}
        self._states: dict[CandidateId, _RequestState] = {}
        # Until the first turn is over, only the answers in the bucket are known.
        self._is_new = True
        # Running requests, with their epoch or before it; and when something of an epoch last
        # arrived.
        self._runs: dict[tuple[CandidateId, int], _RunState] = {}
        self._arrived: dict[tuple[str, int], float] = {}
        self._wait_budget = WaitBudget(timing.blocking)
        self._expired = LogOnce()
        self._capacity: StreamCapacity | None = None
        self._measured_at = float("-inf")
        bus.on_reconnect(self.read_again)

    # --- notifications --------------------------------------------------------------------------

    def note_events(self, events: Sequence[Event]) -> None:
        """Note applied events: those of running lists show that these make progress."""
        if not self._arrived:
            return
        now = time.monotonic()
        for event in events:
            epoch = (event.cluster, event.epoch.id)
            if event.verb is Verb.LISTED and epoch in self._arrived:
                self._arrived[epoch] = now

    def note_end(self, marker: EpochEnd) -> None:
        """Note the end of an epoch: all its events before it on the stream have been read."""
        epoch = Epoch(marker.cluster, marker.resource_key, marker.epoch.id)
        self._ended[epoch] = time.monotonic()
        self._changed.set()

    def read_again(self) -> None:
        """Read all keys, and restore lost ones: writes may have been missed, or the bucket lost."""
        self._keys.read_again()
        self._changed.set()

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Grant until cancelled."""
        async with self._kv.follow(KV_GRANTS, self._keys.receive):
            while True:
                try:
                    await self._work()
                except BusError as e:
                    log.warning("grants_failed", error=str(e))
                    self.read_again()
                    await asyncio.sleep(self._timing.retry.total_seconds())
                await self._wait()

    async def _wait(self) -> None:
        within = self._keys.next_read_in()
        if self._keys.held:
            within = min(within, self._timing.grant_turns.total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()

    async def _work(self) -> None:
        self._changed.clear()
        await self._keys.read()
        decisions = Decisions()
        candidates = list(self._keys.candidates())
        self._update_states(candidates)
        self._wait_budget.begin_turn()
        running = [candidate for candidate in candidates if candidate.request.is_running]
        self._update_runs(running)
        running = await self._end_finished(decisions, running)
        waiting = sorted((p for p in candidates if not p.request.is_running), key=self._order)
        if waiting or running:
            waiting = await self._admit(decisions, waiting, running)
            self._send_keep_alives(decisions, waiting)
        await self._write(decisions)
        self._update_metrics()

    # --- deciding -------------------------------------------------------------------------------

    def _update_states(self, candidates: Sequence[Candidate]) -> None:
        """Keep the state of these requests, and of no others."""
        now = now_ms()
        states: dict[CandidateId, _RequestState] = {}
        for candidate in candidates:
            answer = candidate.request.answer if self._is_new else None
            received = min(answer.received, now) if answer is not None else now
            states[candidate.identity] = self._states.get(candidate.identity) or _RequestState(
                received
            )
        self._states = states
        self._is_new = False

    def _order(self, candidate: Candidate) -> tuple[int, int]:
        """First received, first served; new ones by the time of the request."""
        return (self._states[candidate.identity].received, candidate.request.since)

    def _update_runs(self, running: Sequence[Candidate]) -> None:
        """Keep the state of these requests, and of no others."""
        now = time.monotonic()
        ended_before = now - _ENDS_KEPT.total_seconds()
        self._ended = {epoch: at for epoch, at in self._ended.items() if at > ended_before}
        states = [(candidate.identity, candidate.request.epoch) for candidate in running]
        self._runs = {state: self._runs.get(state) or _RunState(now) for state in states}
        self._arrived = {
            p.listing: self._arrived.get(p.listing, now) for p in running if p.request.epoch
        }

    async def _end_finished(
        self, decisions: Decisions, running: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Remove finished and dead requests; answers those that go on."""
        going_on: list[Candidate] = []
        for candidate in running:
            if candidate.epoch in self._ended:
                decisions.remove(candidate)
            elif await self._is_dead(candidate):
                EXPIRED.inc()
                if self._expired.should_log(key=candidate.cluster):
                    log.warning(
                        "grant_expired", key=candidate.key, replica=candidate.request.replica
                    )
                decisions.remove(candidate)
            else:
                going_on.append(candidate)
        return going_on

    async def _is_dead(self, candidate: Candidate) -> bool:
        """Whether its watcher never began, or has sent nothing for `epoch_idle`."""
        now = time.monotonic()
        run = self._runs[candidate.identity, candidate.request.epoch]
        if not candidate.request.epoch:
            return now - run.since >= self._timing.grant_begun.total_seconds()
        last = max(run.since, self._arrived[candidate.listing])
        if now - last < self._settings.epoch_idle.total_seconds():
            run.read_to = None
            return False
        capacity = await self._measure()
        if capacity is None:
            return False
        # What it has sent may only be unread: the projector is slow, or has no store.
        run.read_to = capacity.last if run.read_to is None else run.read_to
        return capacity.is_read(run.read_to)

    async def _admit(
        self, decisions: Decisions, waiting: Sequence[Candidate], running: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Grant what fits; answers those that have to wait."""
        if not waiting and all(candidate.request.is_granted for candidate in running):
            return waiting
        capacity = await self._measure()
        if capacity is None:
            return waiting
        allotment = Allotment(self._settings, capacity)
        for candidate in running:
            await self._count(decisions, allotment, candidate)
        if capacity.is_exceeded:
            return waiting
        granted = await self._grant(decisions, allotment, waiting)
        return [candidate for candidate in waiting if candidate.identity not in granted]

    async def _count(
        self, decisions: Decisions, allotment: Allotment, candidate: Candidate
    ) -> None:
        """Count what runs, whoever has granted it."""
        answer = candidate.request.answer
        if answer is None or not answer.granted:
            # It runs without a grant: it counts all the same, and learns that we are here.
            answer = self._granted(candidate, await self._size(allotment, candidate))
            decisions.answer(candidate, answer)
        granted = self._states[candidate.identity].granted
        if granted is None:
            allotment.take(candidate.cluster, answer.bytes, whole=False)
        else:
            allotment.take(
                candidate.cluster, granted, whole=self._wait_budget.is_left(candidate.cluster)
            )

    async def _grant(
        self, decisions: Decisions, allotment: Allotment, waiting: Sequence[Candidate]
    ) -> AbstractSet[CandidateId]:
        """Grant what fits, in the order of the requests.

        No request overtakes one that waits for capacity, or a large epoch would never find any;
        unless its cluster has blocked the others for long enough.
        """
        granted: set[CandidateId] = set()
        used_up: set[str] = set()
        for candidate in waiting:
            cluster = candidate.cluster
            if allotment.is_full:
                break
            if cluster in used_up or not allotment.has_slot(cluster):
                continue
            size = await self._size(allotment, candidate)
            if not allotment.has_share(cluster, size):
                used_up.add(cluster)  # its other requests do not overtake it either
                continue
            whole = self._wait_budget.is_left(cluster)
            if allotment.fits(size, whole=whole):
                allotment.take(cluster, size, whole=whole)
                decisions.answer(candidate, self._granted(candidate, size))
                self._states[candidate.identity].granted = size
                granted.add(candidate.identity)
            elif whole:
                self._wait_budget.block_others(allotment.whole or cluster)
                break
        return granted

    async def _measure(self) -> StreamCapacity | None:
        now = time.monotonic()
        if self._capacity is None or now - self._measured_at >= _MEASURE_INTERVAL.total_seconds():
            self._capacity = await measure_capacity(self._bus, self._settings.epochs_percent)
            self._measured_at = now
        return self._capacity

    async def _size(self, allotment: Allotment, candidate: Candidate) -> int:
        objects = 0
        if not candidate.request.bytes:
            # If Redis is away, as if nothing was known.
            with suppress(RedisError):
                objects = await self._reader.count(candidate.cluster, candidate.epoch.resource_key)
        return allotment.size(candidate.request.bytes, objects)

    def _send_keep_alives(self, decisions: Decisions, waiting: Sequence[Candidate]) -> None:
        now = now_ms()
        for candidate in waiting:
            answer = candidate.request.answer
            silence = max(candidate.request.patience * 1000 / _KEEP_ALIVES, _MIN_KEEP_ALIVE_MS)
            # Also if our clock was set back.
            if answer is None or not 0 <= now - answer.at < silence:
                received = self._states[candidate.identity].received
                decisions.answer(candidate, GrantAnswer(received=received, at=now))

    def _granted(self, candidate: Candidate, size: int) -> GrantAnswer:
        received = self._states[candidate.identity].received
        return GrantAnswer(received=received, at=now_ms(), granted=True, bytes=size)

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, decisions: Decisions) -> None:
        for keys in chunks(decisions.keys, CONCURRENCY):
            await asyncio.gather(*(self._write_one(decisions, key) for key in keys))
        for cluster in sorted(decisions.granted):
            await notify_granted(self._bus, cluster)

    async def _write_one(self, decisions: Decisions, key: str) -> None:
        stored = self._keys.held.get(key, NOT_READ)
        try:
            stored = await change_grant_requests(
                self._kv, key, lambda requests: decisions.apply_to(key, requests), stored
            )
        except GrantRequestsContended as e:
            # A watcher may write its own keys without end: the others go on (rule B18).
            log.warning("grant_contended", key=key, error=str(e))
            stored = await read_grant_requests(self._kv, key)
        self._keys.keep(key, stored)

    def _update_metrics(self) -> None:
        requests = [candidate.request for candidate in self._keys.candidates()]
        WAITING.set(sum(not request.is_running for request in requests))
        RUNNING.set(sum(request.is_running for request in requests))
        GRANTED_BYTES.set(sum(r.answer.bytes for r in requests if r.is_granted and r.answer))
