"""Extends the leases of this process from a thread of its own (rule Q5).

A reconcile function may block the event loop, and Redis may stop answering. The first does not
affect the thread. Of the second it reports in time: a lease that could not be confirmed counts as
lost `margin` before it ends, so that this worker stops before another one starts.

A handler cannot be killed. If one has not returned by the limit of its lease, it is taken to hang
for ever; extending for ever would block the request, so the process ends.

After its handler has returned, a lease is extended until the store has recorded its end, however
long that takes, so that it does not look like that of a dead owner. Nothing can be written under it
any more.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from fleetbus.process.access.store import StoreAccess
from fleetbus.process.error_text import render
from fleetbus.store.blocking import make_blocking
from fleetbus.workqueue.queue import BATCH, Lease, QueuePolicy
from fleetbus.workqueue.scripts import Transitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

_EXIT_CODE: Final = 70  # EX_SOFTWARE
_log = structlog.get_logger(__name__)


def connect_blocking(access: StoreAccess | str, policy: QueuePolicy) -> redis.Redis:
    """Make a client for the thread: it never sends twice, and each call ends within the margin."""
    seconds = policy.lease.total_seconds() / 10
    return make_blocking(
        access, retry=Retry(NoBackoff(), 0), socket_timeout=seconds, socket_connect_timeout=seconds
    )


def end_process(lease: Lease) -> None:
    """End the process: a handler never returned, and no clean-up could be trusted."""
    _log.critical("handler_never_returned", request=str(lease.request), fence=lease.fence)
    os._exit(_EXIT_CODE)


@dataclass(slots=True)
class _Watched:
    """A lease of a worker of this process; guarded by the heartbeat's lock."""

    lease: Lease
    confirmed_until: float
    limit: float | None
    since: float
    is_lost: bool = False
    has_returned: bool = False
    """Its handler has returned, so its loss is not reported."""


class Heartbeat:
    """Extends all held leases when a third of each is over, from `start` until `aclose`.

    `on_lost` is called in the event loop that ran `start`, once for each lease that was refused or
    could not be confirmed in time. `on_stuck` is called in the thread.
    """

    def __init__(
        self,
        client: redis.Redis,
        controller: str,
        *,
        policy: QueuePolicy,
        on_lost: Callable[[Lease], None],
        on_stuck: Callable[[Lease], None] = end_process,
    ) -> None:
        self._client = client
        self._calls = Transitions(controller, policy)
        self._lease = policy.lease.total_seconds()
        self._on_lost = on_lost
        self._on_stuck = on_stuck
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        """By the id of the lease, whose hash takes longer to compute."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat {controller}", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_beat = 0.0

    def start(self) -> None:
        """Start the thread; losses are reported to the event loop that calls this."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def aclose(self) -> None:
        """Stop extending; leases that are still held run out."""
        self._stopped.set()
        await asyncio.to_thread(self._thread.join)
        self._client.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def hold(self, leases: Iterable[Lease], *, at_most: timedelta | None = None) -> None:
        """Extend leases until they are dropped; `at_most` is the handler's timeout and grace."""
        now = time.monotonic()
        limit = None if at_most is None else now + at_most.total_seconds()
        with self._lock:
            for lease in leases:
                self._watched[id(lease)] = _Watched(lease, lease.deadline, limit, now)
                # The answer of its take may have come late: it may be due already.
                self._next_beat = min(self._next_beat, self._due(lease.deadline))

    def outlive(self, lease: Lease) -> None:
        """Note that its handler has returned: it is only extended now, until it is dropped."""
        with self._lock:
            if watched := self._watched.get(id(lease)):
                watched.has_returned, watched.limit = True, None

    def drop(self, leases: Iterable[Lease]) -> None:
        """Stop extending leases that the queue has ended."""
        with self._lock:
            for lease in leases:
                self._watched.pop(id(lease), None)

    def vouches_for(self, lease: Lease) -> bool:
        """Whether its handler runs and the lease certainly lasts longer than the margin (rule R4).

        Compares with the clock, so it is exact even if thread and loop have not run for a while.
        """
        with self._lock:
            watched = self._watched.get(id(lease))
            if watched is None or watched.is_lost or watched.has_returned:
                return False
            return watched.confirmed_until > time.monotonic() + self.margin

    @property
    def margin(self) -> float:
        """Seconds before its end at which a lease counts as lost: one tick and one timeout."""
        return self._lease / 5

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.wait(self._lease / 15):
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001 -- without the thread every lease runs out
                _log.error("heartbeat_failed", exception=render(error))

    def _tick(self) -> None:
        began = time.monotonic()
        if began >= self._next_beat:
            self._beat()
        # After the beat: a process that was paused first asks whether the leases are still its own.
        self._report_unconfirmed(began)
        self._report_stuck()

    def _due(self, confirmed_until: float) -> float:
        """When a third of the lease is over."""
        return confirmed_until - self._lease * 2 / 3

    def _beat(self) -> None:
        with self._lock:
            leases = [watched.lease for watched in self._watched.values() if not watched.is_lost]
        started = time.monotonic()
        try:
            for start in range(0, len(leases), BATCH):
                self._extend(leases[start : start + BATCH])
        except (redis.RedisError, OSError) as error:
            # The next tick tries again, until the deadlines count as missed.
            _log.warning("heartbeat_failed", error=str(error), leases=len(leases))
            return
        with self._lock:
            alive = [
                watched.confirmed_until for watched in self._watched.values() if not watched.is_lost
            ]
            self._next_beat = self._due(min([started + self._lease, *alive]))

    def _extend(self, leases: list[Lease]) -> None:
        sent_at = time.monotonic()
        refused = set[int](self._calls.extend(leases).send_blocking(self._client))
        with self._lock:
            for index, lease in enumerate(leases):
                watched = self._watched.get(id(lease))
                if watched is None:
                    continue  # dropped meanwhile, so a refusal is expected
                if index not in refused:
                    watched.confirmed_until = sent_at + self._lease
                    continue
                if watched.has_returned:
                    watched.is_lost = True  # or ended; the call that ends it reports which
                    continue
                self._lose(watched, "refused")

    def _report_unconfirmed(self, asked_at: float) -> None:
        """Report leases that were held before `asked_at` and could not be confirmed."""
        latest = time.monotonic() + self.margin
        with self._lock:
            for watched in self._watched.values():
                if watched.is_lost or watched.has_returned or watched.since > asked_at:
                    continue
                if watched.confirmed_until <= latest:
                    self._lose(watched, "unconfirmed")

    def _report_stuck(self) -> None:
        now = time.monotonic()
        with self._lock:
            stuck = [
                watched
                for watched in self._watched.values()
                if watched.limit and watched.limit <= now
            ]
            for watched in stuck:
                watched.is_lost, watched.limit = True, None  # no longer renewed, and reported once
        for watched in stuck:
            self._on_stuck(watched.lease)

    def _lose(self, watched: _Watched, reason: str) -> None:
        """Report a loss to the loop, once. The lock is held; a closed loop has no worker."""
        watched.is_lost = True
        _log.warning("lease_lost", request=str(watched.lease.request), reason=reason)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_lost, watched.lease)
