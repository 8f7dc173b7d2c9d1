"""The queue in Redis or Valkey: each method is one script call per 500 items."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from fleetbus.errors import LeaseLostError
from fleetbus.workqueue.errors import QueueClosedError, QueueUnavailableError
from fleetbus.workqueue.notify import POLL, Subscription, wake
from fleetbus.workqueue.queue import (
    BATCH,
    ZERO,
    Add,
    Breaker,
    Lease,
    Priority,
    Processing,
    Quarantined,
    QueuePolicy,
    Reaped,
    Room,
    Stats,
    check_notes,
    from_micros,
)
from fleetbus.workqueue.scripts import NO_ENDING, NO_LIMITS, Call, Ending, Limits, Rows, Transitions
from fleetbus_proto import keys

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from redis.asyncio import Redis

    from fleetbus.reconcile import Request

_Item = TypeVar("_Item")
_LEASE_FIELDS = 9
_STOP_PATIENCE = 2.0
"""Seconds that a cancelled take waits for the answer of the store."""
_RETURN_AFTER = (0.0, 0.1, 0.4)
"""Pauses in seconds before attempts to give back what a cancelled call took: a long call has a
connection of its own, so the attempt may overtake it."""


@dataclass(eq=False)
class _Taker:
    """A call of `take` or `serve`; what there is room for is read again at every attempt."""

    room: Callable[[], tuple[int, Limits]]
    start: Callable[[Sequence[Lease]], None]
    waits_for_more: bool
    """It goes on waiting after it was given leases, as long as there is room."""
    woken: asyncio.Future[None] = field(init=False)
    has_enough: bool = False
    is_served: bool = False
    """A call that takes for it is under way."""


class RedisQueue:
    """The queue of one controller, shared by all its processes. Implements `Queue`.

    The client must not retry by itself, `retry=Retry(NoBackoff(), 0)` (rule Q11). If the answer of
    a take is lost, the next take of this object repeats it under the same token.
    """

    def __init__(self, redis: Redis, controller: str, *, policy: QueuePolicy | None = None) -> None:
        self._redis = redis
        self._policy = policy or QueuePolicy()
        self._calls = Transitions(controller, self._policy)
        self._subscription = Subscription(redis, keys.queue(controller, "notify"))
        # Tokens of takes that were sent and never answered: their items may be ours already.
        self._unanswered: list[str] = []
        self._closed = False
        self._is_at_capacity = False
        self._takers: list[_Taker] = []
        """Takers waiting for an item."""
        self._returning: set[asyncio.Task[None]] = set()
        self._drained_at_count, self._drained_until = -1, 0.0
        """Until then nothing is ready, unless there was a notification after that count."""
        # It names this process, for whoever inspects the queue.
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
        self._new_token = lambda: f"{host}-{os.getpid()}_{secrets.token_hex(8)}"

    @property
    def policy(self) -> QueuePolicy:
        """See `Queue.policy`."""
        return self._policy

    async def add(self, items: Sequence[Add]) -> None:
        """See `Queue.add`."""
        for batch in _batches(items):
            await self._send_taking(lambda taking, batch=batch: self._calls.add(batch, taking))

    async def add_recorded(
        self,
        items: Sequence[Add],
        objects: Sequence[int],
        records: Rows,
        ending: Ending = NO_ENDING,
    ) -> tuple[Sequence[int], list[Lease]]:
        """Add, and store the records of the objects that caused the items, in one step (rule P8).

        Args:
            items: at most `BATCH`.
            objects: for each item the object whose record it depends on, counted from 1, or 0.
            records: see `record_save.lua`.
            ending: leases that end in the same step.

        Returns:
            The objects whose record has changed meanwhile: of them nothing was added or stored; and
            the leases that were no longer ours.
        """
        check_notes(ending.notes)
        conflicts, refused = await self._send_taking(
            lambda taking: self._calls.add(
                items, taking, records=records, objects=objects, ending=ending
            )
        )
        self._notify_if_at_capacity(ending.leases)
        return conflicts, [ending.leases[index] for index in refused]

    async def add_after(self, request: Request, delay: timedelta) -> None:
        """See `Queue.add_after`."""
        await self._send(self._calls.add_after(request, delay))

    def weigh(self, weights: Mapping[str, float]) -> None:
        """See `Queue.weigh`."""
        self._calls.weigh(weights)

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
        taken: list[Lease] = []
        most = min(limit, BATCH)
        taker = _Taker(
            lambda: (most, Limits.of(capacity, default_capacity, probes)), taken.extend, False
        )
        try:
            await self._serve(taker, wait, token)
        except asyncio.CancelledError:
            if taken:
                with suppress(QueueUnavailableError):
                    await self.give_back(taken)
            raise
        return taken

    async def serve(
        self, room: Room, start: Callable[[Sequence[Lease]], None], *, wait: timedelta
    ) -> None:
        """Like `take`, for a worker: what other calls take besides is started without delay.

        Returns when `wait` is over, or when items may be left that there is no room for.

        Args:
            room: for how many leases; it may change meanwhile.
            start: called with leases; then there is less room.
            wait: the longest time.

        Raises:
            QueueClosedError: as `take`.
        """

        def read() -> tuple[int, Limits]:
            limits = Limits(room.capacity, room.default_capacity, room.probes)
            return min(room.vacant, BATCH), limits

        await self._serve(_Taker(read, start, True), wait)

    async def _serve(self, taker: _Taker, wait: timedelta, token: str | None = None) -> None:
        give_up = time.monotonic() + wait.total_seconds()
        while True:
            self._check_open()
            if wait > ZERO:
                self._subscription.start()
            # Read before the call, so that a notification between answer and wait is not missed.
            last_count = self._subscription.signal.count
            may_be_ready = token or wait <= ZERO or not self._drained_for(last_count)
            if may_be_ready and (leases := await self._take_now(taker, token)):
                taker.start(leases)
                return
            now = time.monotonic()
            if now >= give_up:
                return
            due = self._drained_for(last_count) or 0.0
            if await self._wait(taker, last_count, min(give_up - now, due)):
                return

    async def done(
        self, leases: Sequence[Lease], notes: Mapping[Request, bytes] | None = None
    ) -> list[Lease]:
        """See `Queue.done`."""
        refused: list[Lease] = []
        for batch in _batches(leases):
            refused += await self.done_recorded(Ending(batch, notes or {}))
        return refused

    async def done_recorded(self, ending: Ending) -> list[Lease]:
        """Like `done`; before that, in the same step, store what the runs left (rule Q12)."""
        check_notes(ending.notes)
        [refused] = await self._send_taking(lambda taking: self._calls.done(ending, taking))
        self._notify_if_at_capacity(ending.leases)
        return [ending.leases[index] for index in refused]

    async def give_back(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Queue.give_back`."""
        refused = await self._send_batches(self._calls.give_back, leases)
        self._notify_if_at_capacity(leases)
        return refused

    async def retry(self, lease: Lease, *, unreachable: bool = False) -> timedelta:
        """See `Queue.retry`."""
        delay: int = await self._send(self._calls.retry(lease, unreachable=unreachable))
        if delay < 0:
            raise LeaseLostError(f"the lease of {lease.request} is lost")
        return timedelta(microseconds=delay)

    async def requeue_after(self, lease: Lease, delay: timedelta) -> None:
        """See `Queue.requeue_after`."""
        if await self._send(self._calls.forget(lease, delay)) < 0:
            raise LeaseLostError(f"the lease of {lease.request} is lost")

    async def forget(self, lease: Lease) -> None:
        """See `Queue.forget`."""
        if await self._send(self._calls.forget(lease)) < 0:
            raise LeaseLostError(f"the lease of {lease.request} is lost")

    async def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Queue.extend`."""
        return await self._send_batches(self._calls.extend, leases)

    async def reap(self) -> Reaped:
        """See `Queue.reap`."""
        hold, marked, recovered, *quarantined = await self._send(self._calls.reap())
        return Reaped(
            held=timedelta(microseconds=hold),
            marked=marked,
            recovered=recovered,
            quarantined=[self._calls.request(item) for item in quarantined],
        )

    async def stats(self) -> Stats:
        """See `Queue.stats`."""
        answer = await self._send(self._calls.stats())
        delayed, processing, failing, depths, quarantined_counts, breakers = answer
        ages: dict[str, timedelta] = {}
        depth: Counter[tuple[str, Priority]] = Counter()
        for band, flow, count, age in depths:
            name, waited = flow.decode().removesuffix(">"), timedelta(microseconds=age)
            ages[name] = max(waited, ages.get(name, waited))
            depth[name, Priority(band)] += count
        return Stats(
            depth=depth,
            delayed=delayed,
            processing=processing,
            failing=failing,
            quarantined=sum(count for _, count in quarantined_counts),
            oldest=max(ages.values(), default=None),
            ages=ages,
            kept={cluster.decode(): count for cluster, count in quarantined_counts},
            breakers=sorted(
                (
                    Breaker(
                        name.decode(), failures, opened, timedelta(microseconds=left), probing == 1
                    )
                    for name, left, failures, opened, probing in breakers
                ),
                key=lambda breaker: breaker.cluster,
            ),
        )

    async def processing(self) -> list[Processing]:
        """See `Queue.processing`."""
        processing, _ = await self._send(self._calls.list_held(BATCH))
        return [
            Processing(self._calls.request(item), fence.decode(), timedelta(microseconds=left))
            for item, fence, left in processing
        ]

    async def quarantined(self) -> list[Quarantined]:
        """See `Queue.quarantined`."""
        _, quarantined = await self._send(self._calls.list_held(BATCH))
        return [
            Quarantined(self._calls.request(item), timedelta(microseconds=left), times)
            for item, left, times in quarantined
        ]

    async def release(self, request: Request) -> bool:
        """See `Queue.release`."""
        return bool(await self._send(self._calls.release(request)))

    async def aclose(self) -> None:
        """See `Queue.aclose`. The client stays open; it belongs to the caller."""
        self._closed = True
        await self._subscription.aclose()
        if self._returning:
            await asyncio.wait(self._returning, timeout=_STOP_PATIENCE)

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError("the queue is closed")

    def _notify_if_at_capacity(self, ended: Sequence[Lease]) -> None:
        """Notify takers of this process: what ended may have freed capacity that they lacked."""
        if ended and self._is_at_capacity:
            self._subscription.signal.notify()

    # --- taking -----------------------------------------------------------------------------------

    def _drained_for(self, last_count: int) -> float:
        """For how many seconds nothing can become ready without a notification after that count."""
        if self._unanswered or self._drained_at_count != last_count:
            return 0.0
        return max(0.0, self._drained_until - time.monotonic())

    async def _take_now(self, taker: _Taker, token: str | None) -> list[Lease]:
        repeated = token or (self._unanswered.pop() if self._unanswered else "")
        taking = self._take_once(taker, repeated or self._new_token(), is_repeated=repeated != "")
        return await self._await_take(taking)

    async def _take_once(self, taker: _Taker, token: str, *, is_repeated: bool) -> list[Lease]:
        sent_at, last_count = time.monotonic(), self._subscription.signal.count
        limit, limits = taker.room()
        with self._remember_unanswered(token):
            call = self._calls.take(token, limit, limits, is_repeated=is_repeated)
            answer = await self._send(call)
            return await self._read_taken(answer, limit, sent_at, last_count)

    async def _read_taken(
        self, answer: Sequence[Any], limit: int, sent_at: float, last_count: int
    ) -> list[Lease]:
        due, is_at_capacity, fence, *fields = answer
        self._is_at_capacity = is_at_capacity == 1
        deadline = sent_at + self._policy.lease.total_seconds()
        leases = [
            self._to_lease(fields[start : start + _LEASE_FIELDS], fence.decode(), deadline)
            for start in range(0, len(fields), _LEASE_FIELDS)
        ]
        # A repeated take gets what the first one asked for, and the worker may have fewer free
        # slots now. Leases that ran out before their answer was read are nobody's (rule Q5).
        usable = leases[:limit] if time.monotonic() < deadline else []
        if len(leases) < limit:
            self._drained_at_count = last_count
            self._drained_until = sent_at + (POLL if due < 0 else min(POLL, due / 1e6))
        await self.give_back(leases[len(usable) :])
        return usable

    async def _wait(self, taker: _Taker, last_count: int, seconds: float) -> bool:
        """Wait for a notification; returns whether a call of this process has taken instead."""
        taker.woken, taker.has_enough = asyncio.get_running_loop().create_future(), False
        self._takers.append(taker)
        try:
            await self._subscription.signal.wait(last_count, seconds, taker.woken)
        finally:
            self._takers.remove(taker)
        return taker.has_enough

    async def _send_taking(self, build: Callable[[Sequence[str | int]], Call]) -> list[Any]:
        """Send a call that may make items ready, and take them for whoever waits here.

        It spares the notification of all processes and the take of the one that is fastest.
        """
        taker = next((candidate for candidate in self._takers if not candidate.is_served), None)
        limit, limits = taker.room() if taker is not None else (0, NO_LIMITS)
        if taker is None or limit <= 0 or self._unanswered:
            return (await self._send(build(())))[:-1]
        token = self._new_token()
        sent_at, last_count = time.monotonic(), self._subscription.signal.count
        taking = self._calls.taking(token, limit, limits)
        taker.is_served = True
        try:
            *answer, taken = await self._send(build(taking))
        except asyncio.CancelledError:
            self._start_returning(token)
            raise
        except BaseException:
            self._unanswered.append(token)
            wake(taker.woken)  # to repeat it
            raise
        finally:
            taker.is_served = False
        leases = await self._read_taken(taken, limit, sent_at, last_count) if taken else []
        if taker not in self._takers:  # it has stopped waiting meanwhile
            await self.give_back(leases)
        elif leases:
            taker.start(leases)
            if not taker.waits_for_more or len(leases) == limit:
                taker.has_enough = True
                wake(taker.woken)
        return answer

    def _start_returning(self, token: str) -> None:
        """Give back what a call has taken whose answer nobody reads."""
        task = asyncio.create_task(self._return_taken(token), name="return leases")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return_taken(self, token: str) -> None:
        for pause in _RETURN_AFTER:
            await asyncio.sleep(pause)
            with suppress(QueueUnavailableError):  # then the reaper recovers them
                answer = await self._send(self._calls.take(token, 0, is_repeated=True))
                await self._read_taken(answer, 0, time.monotonic(), -1)
                if answer[2]:  # the fence
                    return

    async def _await_take(self, taking: Coroutine[Any, Any, list[Lease]]) -> list[Lease]:
        """Await a take; if cancelled meanwhile, wait for its answer and give the leases back.

        Closing the connection is not enough: the server may execute the call a moment later.
        """
        task = asyncio.create_task(taking, name="take")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=_STOP_PATIENCE)
            if task.done() and not task.cancelled() and task.exception() is None:
                with suppress(QueueUnavailableError):
                    await self.give_back(task.result())
            task.cancel()
            raise

    @contextmanager
    def _remember_unanswered(self, token: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            # A call that was cancelled may have been executed, too (rule Q11).
            self._unanswered.append(token)
            raise

    def _to_lease(self, fields: list[Any], fence: str, deadline: float) -> Lease:
        item, since, failures, band, trigger, trace, note, is_probe, cause = fields
        return Lease(
            request=self._calls.request(item),
            fence=fence,
            attempt=failures,
            deadline=deadline,
            enqueued_at=from_micros(int(since)),
            priority=Priority(band),
            trigger=trigger,
            trace=trace.decode(),
            note=note,
            is_probe=is_probe == 1,
            cause=cause.decode(),
        )

    async def _send_batches(
        self, build: Callable[[Iterable[Lease]], Call], leases: Sequence[Lease]
    ) -> list[Lease]:
        refused: list[Lease] = []
        for batch in _batches(leases):
            answer: list[int] = await self._send(build(batch))
            refused += [batch[index] for index in answer]
        return refused

    async def _send(self, call: Call) -> Any:
        return await call.send(self._redis)


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, BATCH)):
        yield batch
