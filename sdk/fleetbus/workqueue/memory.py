"""The queue in memory: the same contract without a store, for tests and single processes.

It passes the same tests as `RedisQueue`, which keeps the two alike. Nothing here awaits between
reading and writing, so no lock is needed.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING

from fleetbus.errors import LeaseLostError
from fleetbus.workqueue.errors import QueueClosedError
from fleetbus.workqueue.memory_breakers import Outages
from fleetbus.workqueue.memory_items import Capacity, ItemState, LeaseState, Ready, flow_of
from fleetbus.workqueue.notify import POLL, Signal
from fleetbus.workqueue.queue import (
    BATCH,
    ZERO,
    Add,
    Lease,
    Priority,
    Processing,
    Quarantined,
    QueuePolicy,
    Reaped,
    Stats,
    check_notes,
    check_trace,
    newest_trigger,
)
from fleetbus.workqueue.scripts import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fleetbus.reconcile import Request


class MemoryQueue:
    """The queue of one controller inside this process. Implements `Queue`."""

    def __init__(
        self,
        controller: str,
        *,
        policy: QueuePolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._policy = policy or QueuePolicy()
        self._clock = clock
        self._items: dict[Request, ItemState] = {}
        self._ready = Ready()
        self._outages = Outages(self._policy, self._ready)
        # Indexes of `_items`: those that are leased, and those that wait for a time.
        self._leased: dict[Request, LeaseState] = {}
        self._later: set[Request] = set()
        self._signal = Signal()
        self._generation = secrets.token_hex(6)
        # By how much the queue's time is ahead of the clock, because that went back (Q8).
        self._ahead = 0.0
        self._last_call = clock()
        self._hold = 0.0
        self._closed = False
        self._is_at_capacity = False

    @property
    def policy(self) -> QueuePolicy:
        """The numbers this queue works by."""
        return self._policy

    async def add(self, items: Sequence[Add]) -> None:
        """See `Queue.add`."""
        now = self._read_clock()
        for index, add in enumerate(items):
            self._check(add.request)
            self._assign_flow(add.request, add.foreign_cause)
            # One microsecond apart, so that a batch keeps its order.
            self._mark_dirty(add.request, add.priority, now + index / 1e6, add.trigger)
            item = self._items[add.request]
            item.trace = check_trace(add.trace) or item.trace

    async def add_after(self, request: Request, delay: timedelta) -> None:
        """See `Queue.add_after`."""
        self._check(request)
        self._delay(request, self._read_clock() + delay.total_seconds())

    def weigh(self, weights: Mapping[str, float]) -> None:
        """See `Queue.weigh`."""
        self._ready.weigh(weights)

    async def take(
        self,
        limit: int,
        *,
        wait: timedelta = ZERO,
        token: str | None = None,
        capacity: Mapping[str, int] | None = None,
        default_capacity: int | None = None,
        probes: int | None = None,
    ) -> list[Lease]:
        """See `Queue.take`."""
        give_up = time.monotonic() + wait.total_seconds()
        while True:
            last_count = self._signal.count
            fitting = Capacity(Limits.of(capacity, default_capacity, probes))
            leases = self._take_now(min(limit, BATCH), token or secrets.token_hex(12), fitting)
            remaining = give_up - time.monotonic()
            if leases or remaining <= 0:
                return leases
            await self._signal.wait(last_count, min(remaining, self._until_due(), POLL))

    async def done(
        self, leases: Sequence[Lease], notes: Mapping[Request, bytes] | None = None
    ) -> list[Lease]:
        """See `Queue.done`."""
        left = notes or {}
        check_notes(left)
        self._read_clock()
        refused = [lease for lease in leases if not self._end(lease, left.get(lease.request, b""))]
        self._notify_if_at_capacity()
        return refused

    async def give_back(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Queue.give_back`."""
        self._read_clock()
        refused = [lease for lease in leases if not self._give_back(lease)]
        self._notify_if_at_capacity()
        return refused

    async def retry(self, lease: Lease, *, unreachable: bool = False) -> timedelta:
        """See `Queue.retry`."""
        now, item = self._read_clock(), self._owned(lease)
        item.failures += 1
        delay = self._policy.backoff.delay(item.failures)
        if unreachable:
            delay = min(delay, self._policy.breaker_pause.limit)
        item.trigger = newest_trigger(item.trigger, lease.trigger)
        item.trace = item.trace or lease.trace
        self._delay(lease.request, now + delay.total_seconds())
        if unreachable:
            self._outages.count_unreachable(lease.request.cluster, lease.fence, now)
        else:
            self._outages.count_answered(lease.request.cluster, lease.fence)
        return delay

    async def requeue_after(self, lease: Lease, delay: timedelta) -> None:
        """See `Queue.requeue_after`."""
        now = self._read_clock()
        self._owned(lease).failures = 0
        self._delay(lease.request, now + delay.total_seconds())

    async def forget(self, lease: Lease) -> None:
        """See `Queue.forget`."""
        self._read_clock()
        self._owned(lease).failures = 0

    async def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Queue.extend`."""
        now = self._read_clock()
        return [lease for lease in leases if not self._extend(lease, now)]

    async def reap(self) -> Reaped:
        """See `Queue.reap`."""
        now = self._read_clock()
        self._drop_old_notes(now)
        expired = self._expired(now) if now >= self._hold else []
        grace = self._policy.grace.total_seconds()
        suspects = [
            (request, state)
            for request, state in expired
            if state.suspected is not None and now - state.suspected >= grace
        ]
        new = [state for _, state in expired if state.suspected is None]
        for state in new:
            state.suspected = now
        quarantined = [request for request, state in suspects if self._recover(request, state, now)]
        left = timedelta(seconds=max(0.0, self._hold - now))
        return Reaped(held=left, marked=len(new), recovered=len(suspects), quarantined=quarantined)

    async def stats(self) -> Stats:
        """See `Queue.stats`."""
        now = self._read_clock()
        later = [self._items[request] for request in self._later]
        kept_by_cluster = Counter(
            r.cluster for r in self._later if self._items[r].kept_until is not None
        )
        ages = {
            cluster: timedelta(seconds=max(0.0, now - since))
            for cluster, since in self._ready.oldest().items()
        }
        return Stats(
            depth=self._ready.depth(),
            delayed=sum(item.due is not None for item in later),
            processing=len(self._leased),
            failing=sum(item.failures > 0 for item in self._items.values()),
            quarantined=kept_by_cluster.total(),
            oldest=max(ages.values(), default=None),
            ages=ages,
            kept=kept_by_cluster,
            breakers=self._outages.breakers(now),
        )

    def next_due(self) -> float | None:
        """When something becomes due by itself, by this queue's clock; None if nothing will.

        That is a delayed or quarantined request, or the probe of an open breaker.
        """
        later = [self._items[request] for request in self._later]
        ends = [end for item in later for end in (item.due, item.kept_until) if end is not None]
        first = min([*ends, self._outages.next_due(self._now())])
        return None if first == inf else first - self._ahead

    def notify(self) -> None:
        """Wake all who wait in `take`: the clock was moved, so requests may be due."""
        self._signal.notify()

    async def processing(self) -> list[Processing]:
        """See `Queue.processing`."""
        now = self._read_clock()
        items = [
            Processing(request, state.lease.fence, timedelta(seconds=state.ends - now))
            for request, state in self._leased.items()
        ]
        return sorted(items, key=lambda item: item.remaining)[:BATCH]

    async def quarantined(self) -> list[Quarantined]:
        """See `Queue.quarantined`."""
        now = self._read_clock()
        items = [
            Quarantined(request, timedelta(seconds=item.kept_until - now), item.quarantines)
            for request, item in ((key, self._items[key]) for key in self._later)
            if item.kept_until is not None
        ]
        return sorted(items, key=lambda entry: entry.remaining)[:BATCH]

    async def release(self, request: Request) -> bool:
        """See `Queue.release`."""
        self._read_clock()
        item = self._items.get(request)
        if item is None or item.kept_until is None:
            return False
        item.kept_until, item.reclaims, item.quarantines = None, [], 0
        if item.due is None:
            self._later.discard(request)
        self._ready_if_dirty(request)
        return True

    async def aclose(self) -> None:
        """See `Queue.aclose`."""
        self._closed = True
        self._signal.notify()

    def is_empty(self) -> bool:
        """Whether no state is left, as after the last `done`; for tests."""
        return not self._items and self._outages.is_empty()

    # --- the transitions, in the order of state.lua -------------------------------------------

    def _read_clock(self) -> float:
        """Return the time; a jump of more than half a lease holds the reaper for one (rule Q6)."""
        now, lease = self._now(), self._policy.lease.total_seconds()
        if self._leased and abs(now - self._last_call) > lease / 2:
            self._hold = now + lease
        self._last_call = now
        return now

    def _now(self) -> float:
        """Return the queue's time, which never goes back (rule Q8)."""
        now = self._clock() + self._ahead
        if now < self._last_call:
            self._ahead += self._last_call - now
            return self._last_call
        return now

    def _check(self, request: Request) -> None:
        if request.controller != self._controller:
            raise ValueError(f"{request} belongs to {request.controller}, not {self._controller}")

    def _item(self, request: Request) -> ItemState:
        return self._items.setdefault(request, ItemState())

    def _drop_if_blank(self, request: Request) -> None:
        if self._items.get(request) == ItemState():
            del self._items[request]

    def _assign_flow(self, request: Request, cause: str) -> None:
        """See `assign_flow` in `state.lua`."""
        item = self._item(request)
        if item.dirty is None:
            item.cause = cause
        elif item.cause and not cause:
            was_ready = self._ready.withdraw(request, *item.dirty, flow_of(request, item.cause))
            item.cause = ""
            if was_ready:
                self._ready_if_dirty(request)

    def _mark_dirty(self, request: Request, band: Priority, since: float, trigger: bytes) -> None:
        item = self._item(request)
        item.trigger = newest_trigger(item.trigger, trigger)
        if item.dirty is None:
            item.dirty = (band, since)
            self._ready_if_dirty(request)
        elif band < item.dirty[0]:
            old, item.dirty = item.dirty, (band, min(since, item.dirty[1]))
            if self._ready.withdraw(request, *old, flow_of(request, item.cause)):
                self._ready_if_dirty(request)

    def _ready_if_dirty(self, request: Request) -> None:
        item = self._items[request]
        if item.dirty and request not in self._leased and item.kept_until is None:
            self._ready.put(request, *item.dirty, flow_of(request, item.cause))
            self._outages.wake(request.cluster, self._now())
            self._signal.notify()

    def _delay(self, request: Request, due: float) -> None:
        item = self._item(request)
        item.due = due if item.due is None else min(item.due, due)
        self._later.add(request)
        self._signal.notify()

    def _take_now(self, limit: int, token: str, capacity: Capacity) -> list[Lease]:
        if self._closed:
            raise QueueClosedError("the queue is closed")
        now = self._read_clock()
        again = [state for state in self._leased.values() if state.token == token]
        if again:
            for state in again[limit:]:
                self._give_back(state.lease)
            return [self._extended(state, now) for state in again[:limit]]
        self._promote(now)
        fence = f"{now * 1e6:.0f}.{token}.{self._generation}"
        leases: list[Lease] = []
        is_at_capacity = False
        for cluster in self._outages.due(now):
            if not capacity.has(cluster) or len(leases) >= min(limit, capacity.probes):
                is_at_capacity = True
            elif popped := self._ready.pop_of(cluster):
                self._outages.begin_probe(cluster, fence)
                capacity.use(cluster)
                leases.append(self._start(*popped, fence, token, now))
            else:
                self._outages.park(cluster)
        while len(leases) < limit and (next_item := self._ready.pop(capacity)):
            request, band, flow = next_item
            if flow != request.cluster and self._outages.is_open(request.cluster):
                probing = sum(lease.is_probe for lease in leases)
                is_due = request.cluster in self._outages.due(now, parked=True)
                if not is_due or probing >= capacity.probes or not capacity.has(request.cluster):
                    self._put_off(request, now)
                    continue
                self._outages.begin_probe(request.cluster, fence)
            capacity.use(flow)
            leases.append(self._start(request, band, fence, token, now))
        self._is_at_capacity = self._ready.forfeit_turns(capacity) or is_at_capacity
        return leases

    def _put_off(self, request: Request, now: float) -> None:
        """Delay a request of another cluster's flow whose own cluster does not answer."""
        self._items[request].dirty = None
        self._delay(request, self._outages.next_try(request.cluster, now))

    def _start(self, request: Request, band: Priority, fence: str, token: str, now: float) -> Lease:
        item = self._items[request]
        since = item.dirty[1] if item.dirty else now
        lease = Lease(
            request=request,
            fence=fence,
            attempt=item.failures,
            deadline=time.monotonic() + self._policy.lease.total_seconds(),
            enqueued_at=datetime.fromtimestamp(since - self._ahead, UTC),
            priority=band,
            trigger=item.trigger,
            trace=item.trace,
            note=item.note,
            is_probe=self._outages.is_probe(request.cluster, fence),
            cause=item.cause,
        )
        ends = now + self._policy.lease.total_seconds()
        item.dirty, item.trigger, item.trace = None, b"", ""
        self._leased[request] = LeaseState(lease, token, since, ends)
        return lease

    def _extended(self, state: LeaseState, now: float) -> Lease:
        span = self._policy.lease.total_seconds()
        state.ends, state.suspected = now + span, None
        state.lease = replace(state.lease, deadline=time.monotonic() + span)
        return state.lease

    def _promote(self, now: float) -> None:
        for request in list(self._later):
            item = self._items[request]
            if item.due is not None and item.due <= now:
                item.due = None
                self._mark_dirty(request, Priority.RETRY, now, b"")
            if item.kept_until is not None and item.kept_until <= now:
                item.kept_until = None
                self._ready_if_dirty(request)
            if item.due is None and item.kept_until is None:
                self._later.discard(request)

    def _until_due(self) -> float:
        due = self.next_due()
        return POLL if due is None else max(0.0, due - self._clock())

    def _held_under(self, lease: Lease) -> LeaseState | None:
        state = self._leased.get(lease.request)
        return state if state and state.lease.fence == lease.fence else None

    def _owned(self, lease: Lease) -> ItemState:
        if self._held_under(lease) is None:
            raise LeaseLostError(f"the lease of {lease.request} is lost")
        return self._items[lease.request]

    def _extend(self, lease: Lease, now: float) -> bool:
        state = self._held_under(lease)
        if state:
            self._extended(state, now)
        return state is not None

    def _end(self, lease: Lease, note: bytes) -> bool:
        if self._held_under(lease) is None:
            return False
        item = self._items[lease.request]
        if not item.failures:
            self._outages.succeed(lease.request.cluster)
        self._end_lease(lease)
        item.reclaims, item.quarantines, item.note = [], 0, note
        item.noted = self._now() if note else 0.0
        self._ready_if_dirty(lease.request)
        if item.dirty is None and item.due is None:
            item.cause = ""
        self._drop_if_blank(lease.request)
        return True

    def _give_back(self, lease: Lease) -> bool:
        state = self._leased.get(lease.request)
        if state is None or self._held_under(lease) is None:
            return False
        self._end_lease(lease)
        self._return_to_queue(state)
        return True

    def _end_lease(self, lease: Lease) -> None:
        del self._leased[lease.request]
        self._outages.end_probe(lease.request.cluster, lease.fence, self._now())

    def _notify_if_at_capacity(self) -> None:
        if self._is_at_capacity:
            self._signal.notify()

    def _drop_old_notes(self, now: float) -> None:
        age = self._policy.note_age.total_seconds()
        old = [
            request
            for request, item in self._items.items()
            if item.note and item.noted <= now - age
        ]
        for request in old:
            self._items[request].note, self._items[request].noted = b"", 0.0
            self._drop_if_blank(request)

    def _return_to_queue(self, state: LeaseState) -> None:
        lease = state.lease
        self._ready_if_dirty(lease.request)
        self._mark_dirty(lease.request, lease.priority, state.since, lease.trigger)
        item = self._items[lease.request]
        item.trace = item.trace or lease.trace

    def _expired(self, now: float) -> list[tuple[Request, LeaseState]]:
        return [(request, state) for request, state in self._leased.items() if state.ends <= now]

    def _recover(self, request: Request, state: LeaseState, now: float) -> bool:
        """Return the request to the queue; True if it went into quarantine (rule Q7)."""
        item, policy = self._items[request], self._policy
        window = policy.reclaim_window.total_seconds()
        self._end_lease(state.lease)
        item.reclaims = [*(at for at in item.reclaims if at > now - window), now]
        is_deadly = item.quarantines > 0 or len(item.reclaims) >= policy.reclaims
        if is_deadly:
            item.quarantines += 1
            pause = policy.quarantine.delay(item.quarantines)
            item.kept_until = now + pause.total_seconds()
            self._later.add(request)
        self._return_to_queue(state)
        return is_deadly
