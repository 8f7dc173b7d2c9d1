"""Requests a grant from the projector before each epoch, so that few run at once (rule W7).

Relists of many clusters at once would push what others have published out of the stream before
anybody has read it. So a watcher writes a request into the grant key of the resource and waits
until the projector has granted it there. A projector that does not answer blocks nothing: after a
time without a sign of it, epochs run without a grant, one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.process.pauses import Pauses
from fleetbus.watchers.grant_requests import (
    NOT_READ,
    GrantAnswer,
    GrantRequest,
    GrantRequests,
    change_grant_requests,
    read_grant_requests,
)
from fleetbus_proto.keys import kv_grant
from fleetbus_proto.resources import Resource
from fleetbus_watcher import metrics
from fleetbus_watcher.errors import EpochAbandoned, GrantExceeded
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.timing import USUAL, WatcherTiming

log = structlog.get_logger()

_RELEASE_WITHIN: Final = timedelta(seconds=1)
"""It only saves others a wait, so a stop does not wait longer for it (rule W21)."""
_SILENCE_LASTS: Final = timedelta(seconds=5)
"""After so long without a request a silent projector may be back: the next request waits again."""
_MESSAGE_FRAME: Final = 768
"""Subject, headers and the server's own record of a listed object; about 700 bytes, measured."""


class Grant:
    """The permission to run one epoch; `is_complete` is set once its end is stored.

    Args:
        granted_bytes: how many bytes may be published; 0 is unlimited.
        was_awaited: whether the state may have changed since the request.

    Attributes:
        peer: after `begin`, a peer replica that had begun the same list before (W15).
    """

    def __init__(self, granted_bytes: int, *, was_awaited: bool) -> None:
        self.was_awaited = was_awaited
        self.is_complete = False
        self.bytes = 0
        self.peer: GrantRequest | None = None
        self._granted_bytes = granted_bytes
        self._objects = 0

    async def begin(self, epoch: int) -> None:
        """Record the epoch for which the grant is used.

        Raises:
            EpochAbandoned: the grant was revoked meanwhile.
            BusError: it could not be recorded.
        """

    def count(self, size: int) -> None:
        """Count a published object; `size` is that of its body."""
        self._objects += 1
        self.bytes += size + _MESSAGE_FRAME

    def check(self, remaining: int | None) -> None:
        """After a page, give the epoch up if it exceeds its grant by more than half.

        The projector plans with half of the stream, so it can bear that much.

        Args:
            remaining: how many objects are still to come; None if the server did not say.

        Raises:
            GrantExceeded: a grant must be requested again, with the size that is known now.
        """
        if not self._granted_bytes:
            return
        to_come = max(remaining or 0, 0)
        expected = self.bytes + to_come * self.bytes // max(self._objects, 1)
        if expected <= self._granted_bytes + self._granted_bytes // 2:
            return
        # Without a count from the server at least as much again is to be expected.
        raise GrantExceeded(2 * expected if remaining is None else expected)


class _RequestedGrant(Grant):
    def __init__(
        self, request: _StoredRequest, answer: GrantAnswer | None, *, was_awaited: bool
    ) -> None:
        super().__init__(answer.bytes if answer else 0, was_awaited=was_awaited)
        self._request = request
        self.is_granted = answer is not None

    async def begin(self, epoch: int) -> None:
        if not await self._request.begin(epoch, is_granted=self.is_granted):
            raise EpochAbandoned("its grant was revoked before it began")
        self.peer = self._request.begun_before


class _StoredRequest:
    """One request in the bucket."""

    def __init__(self, kv: KeyValue, key: str, request: GrantRequest, *, is_known: bool) -> None:
        self._kv = kv
        self._key = key
        self._request = request
        self._stored = NOT_READ
        self._is_known = is_known

    async def write(self) -> None:
        """Write the request, replacing an older one of ours."""
        if self._is_known:  # else to create the key is faster
            self._stored = await read_grant_requests(self._kv, self._key)
        self._is_known = True
        await self._change(lambda requests: (*self._others(requests), self._request))

    async def read(self) -> GrantRequest | None:
        """Read the request with its answer; None if it is gone."""
        self._stored = await read_grant_requests(self._kv, self._key)
        return self._stored.find(self._request)

    async def begin(self, epoch: int, *, is_granted: bool) -> bool:
        """Record that the epoch runs; False if the request is gone, and with it the grant."""

        def change(requests: GrantRequests) -> GrantRequests:
            stored = next((r for r in requests if r.is_same(self._request)), None)
            if stored is None and is_granted:
                return requests
            begun = msgspec.structs.replace(stored or self._request, epoch=epoch)
            return (*self._others(requests), begun)

        await self._change(change)
        return self._stored.find(self._request) is not None

    @property
    def begun_before(self) -> GrantRequest | None:
        """The request of a peer replica for the same scope that had begun before ours.

        Whoever begins moves its request to the end, by compare-and-set: one of two is always first.
        """
        for request in self._stored.requests:
            if request.is_same(self._request):
                return None
            if request.scope == self._request.scope and request.epoch:
                return request
        return None

    async def remove(self) -> None:
        """Remove the request if it exists; if that fails the projector does it later."""
        with suppress(BusError, TimeoutError):
            async with asyncio.timeout(_RELEASE_WITHIN.total_seconds()):
                await self._change(
                    lambda requests: tuple(r for r in requests if not r.is_same(self._request))
                )

    async def _change(self, change: Callable[[GrantRequests], GrantRequests]) -> None:
        self._stored = await change_grant_requests(self._kv, self._key, change, self._stored)

    def _others(self, requests: GrantRequests) -> GrantRequests:
        key = (self._request.replica, self._request.scope)
        return tuple(request for request in requests if (request.replica, request.scope) != key)


class GrantClient:
    """Requests grants for the resources of one cluster.

    Args:
        kv: the bucket.
        cluster: whose resources.
        replica: the name of the replica that requests.
        patience: how long to wait for a sign of the projector; 0 never requests.
        timing: when it looks, and reports that it waits.
    """

    def __init__(
        self,
        *,
        kv: KeyValue,
        cluster: str,
        replica: ReplicaName,
        patience: timedelta,
        timing: WatcherTiming = USUAL,
    ) -> None:
        self._kv = kv
        self._cluster = cluster
        self._replica = replica
        self._patience = patience.total_seconds()
        self._timing = timing
        self._metrics = metrics.grant_metrics(cluster)
        self._woken = asyncio.Event()
        self._known: set[str] = set()
        self._requested_at = 0
        self._open = 0
        self._idle_since = time.monotonic()
        # Whether the projector was silent for too long; later requests need not wait as long.
        self._is_silent = False
        # Whether an epoch runs without a grant.
        self._is_ungranted_running = False

    def wake(self) -> None:
        """Read the requests now: the projector has answered."""
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    @asynccontextmanager
    async def granted(
        self, resource: Resource, scope: str, size: int, waits: Callable[[], None]
    ) -> AsyncGenerator[Grant]:
        """Wait for a grant to list, and hold it as long as the block lasts.

        A block that ends without a complete epoch releases the grant; otherwise the projector
        removes it when it has read the epoch to its end.

        Args:
            resource: what to list.
            scope: the hash of what narrows it.
            size: how many bytes it will publish; 0 if unknown.
            waits: called once if that takes long.

        Raises:
            BusError: the request could not be written or read.
        """
        if not self._patience:
            yield Grant(0, was_awaited=False)
            return
        request = self._new_request(resource, scope, size)
        grant: _RequestedGrant | None = None
        self._count_open()
        try:
            grant = await self._wait_for_grant(request, waits)
            with self._metrics.running.track_inprogress():
                yield grant
        finally:
            self._close(is_ungranted=grant is not None and not grant.is_granted)
            if grant is None or not grant.is_complete:
                await request.remove()

    def _new_request(self, resource: Resource, scope: str, size: int) -> _StoredRequest:
        key = kv_grant(self._cluster, resource.group, resource.plural)
        # Never the same twice, also when the clock was set back.
        self._requested_at = max(now_ms(), self._requested_at + 1)
        request = GrantRequest(
            replica=self._replica.current,
            scope=scope,
            since=self._requested_at,
            patience=self._patience,
            bytes=size,
        )
        is_known = key in self._known
        self._known.add(key)
        return _StoredRequest(self._kv, key, request, is_known=is_known)

    def _count_open(self) -> None:
        idle = time.monotonic() - self._idle_since
        if not self._open and idle > _SILENCE_LASTS.total_seconds():
            self._is_silent = False
        self._open += 1

    def _close(self, *, is_ungranted: bool) -> None:
        self._open -= 1
        self._idle_since = time.monotonic()
        if is_ungranted:
            self._is_ungranted_running = False
            self.wake()

    async def _wait_for_grant(
        self, request: _StoredRequest, waits: Callable[[], None]
    ) -> _RequestedGrant:
        """Wait until it is granted, or the projector is silent and no other epoch of ours runs."""
        wait = _Wait(self._patience, self._timing, waits)
        with self._metrics.waiting.track_inprogress():
            woken = self._woken
            await request.write()
            while not self._may_run_ungranted(wait):
                await wait.pause(woken)
                woken = self._woken
                if answer := await self._read_granted(request, wait):
                    return _RequestedGrant(request, answer, was_awaited=wait.is_long)
        self._is_ungranted_running = True
        self._metrics.unanswered.inc()
        return _RequestedGrant(request, None, was_awaited=wait.is_long)

    async def _read_granted(self, request: _StoredRequest, wait: _Wait) -> GrantAnswer | None:
        """Read the answer; None if it is not granted yet."""
        stored = await request.read()
        if stored is None:
            await request.write()  # the bucket was lost, or we were thought to be dead
        elif stored.answer is not None and stored.answer != wait.answer:
            wait.receive(stored.answer)
            self._is_silent = False
            return stored.answer if stored.answer.granted else None
        return None

    def _may_run_ungranted(self, wait: _Wait) -> bool:
        if wait.is_over and not self._is_silent:
            self._is_silent = True
            log.warning("no_grant_in_time", cluster=self._cluster, waited=self._patience)
        return self._is_silent and not self._is_ungranted_running


class _Wait:
    """Waiting time of a request, and the time of its next poll."""

    def __init__(self, patience: float, timing: WatcherTiming, waits: Callable[[], None]) -> None:
        self._patience = patience
        self._reported_after = timing.grant_reported_after.total_seconds()
        self._waits: Callable[[], None] | None = waits
        self._started = self._quiet_since = time.monotonic()
        self._polls = Pauses(timing.grant_first_poll, timing.grant_last_poll)
        self.answer: GrantAnswer | None = None

    @property
    def is_long(self) -> bool:
        """Whether heartbeats should report the wait."""
        return time.monotonic() - self._started >= self._reported_after

    @property
    def is_over(self) -> bool:
        """Whether the projector has been silent for too long."""
        return time.monotonic() - self._quiet_since >= self._patience

    def receive(self, answer: GrantAnswer) -> None:
        """Note a sign of the projector."""
        self.answer = answer
        self._quiet_since = time.monotonic()

    async def pause(self, woken: asyncio.Event) -> None:
        """Wait until `woken` is set, or it is time to poll."""
        if self._waits is not None and self.is_long:
            self._waits()
            self._waits = None
        left = self._quiet_since + self._patience - time.monotonic()
        poll = self._polls.next().total_seconds()
        within = min(poll, left) if left > 0 else poll
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await woken.wait()
