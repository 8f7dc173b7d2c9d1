"""Ask the projector before each epoch, so that few run at once over the whole fleet (rule W7).

A relist of many clusters at once would push what others have published out of the stream before
anybody has read it. So a watcher writes into the grant key of the resource that it wants to list,
and waits until the projector has written its yes beside it. A projector that does not answer stops
nothing: after a time without a sign of it, epochs go ahead one at a time.
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
from fleetbus.watchers.grant_requests import (
    NOT_READ,
    GrantAnswer,
    GrantRequest,
    GrantRequests,
    StoredGrantRequests,
    change_grant_requests,
    read_grant_requests,
)
from fleetbus_proto.keys import kv_grant
from fleetbus_proto.resources import Resource
from fleetbus_watcher import metrics
from fleetbus_watcher.errors import EpochAbandoned, EpochOutgrown

log = structlog.get_logger()

_FIRST_LOOK: Final = timedelta(milliseconds=250)
_LAST_LOOK: Final = timedelta(seconds=5)
"""The projector wakes us; we look by ourselves in case that was lost."""
_TOLD_AFTER: Final = timedelta(seconds=1)
"""A shorter wait is no news for a heartbeat."""
_GIVE_BACK_WITHIN: Final = timedelta(seconds=1)
"""It only saves others a wait, so a stop does not wait longer for it (W21)."""
_SILENCE_LASTS: Final = timedelta(seconds=5)
"""After so long without an ask of ours a silent projector may be back: the next one waits again."""
_MESSAGE_FRAME: Final = 768
"""Subject, headers and the server's own record of a listed object; about 700 bytes, measured."""


class Grant:
    """The leave to run one epoch; `complete` is set once its end is stored.

    Args:
        room: how many bytes it was granted for; 0 is no limit.
        was_awaited: whether the world may have changed since it was asked for.

    Attributes:
        twin: after `begin`, another replica that had begun the same list before (W15).
    """

    def __init__(self, room: int, *, was_awaited: bool) -> None:
        self.was_awaited = was_awaited
        self.is_complete = False
        self.bytes = 0
        self.twin: GrantRequest | None = None
        self._room = room
        self._objects = 0

    async def begin(self, epoch: int) -> None:
        """Tell which epoch it is used for.

        Raises:
            EpochAbandoned: it was taken back meanwhile.
            BusError: nothing is known.
        """

    def count(self, size: int) -> None:
        """One object was published; `size` is that of its body."""
        self._objects += 1
        self.bytes += size + _MESSAGE_FRAME

    def check(self, remaining: int | None) -> None:
        """After a page: give the epoch up if it outgrows its grant by more than half.

        The projector plans with half of the stream, so it can bear that much.

        Args:
            remaining: how many objects are still to come; None if the server did not say.

        Raises:
            EpochOutgrown: it has to be asked for again, with the size that is known now.
        """
        if not self._room:
            return
        to_come = max(remaining or 0, 0)
        expected = self.bytes + to_come * self.bytes // max(self._objects, 1)
        if expected <= self._room + self._room // 2:
            return
        # Without a count from the server at least as much again is to be expected.
        raise EpochOutgrown(2 * expected if remaining is None else expected)


class _AskedGrant(Grant):
    def __init__(self, place: _Place, answer: GrantAnswer | None, *, was_awaited: bool) -> None:
        super().__init__(answer.bytes if answer else 0, was_awaited=was_awaited)
        self._place = place
        self.is_granted = answer is not None

    async def begin(self, epoch: int) -> None:
        if not await self._place.begin(epoch, is_granted=self.is_granted):
            raise EpochAbandoned("its grant was taken back before it began")
        self.twin = self._place.begun_before


class _Place:
    """One ask, as it stands in the bucket."""

    def __init__(self, kv: KeyValue, key: str, ask: GrantRequest, *, is_known: bool) -> None:
        self._kv = kv
        self._key = key
        self._ask = ask
        self._held = NOT_READ
        self._is_known = is_known

    async def take(self) -> None:
        """Write the ask, in the place of an older one of ours."""
        if self._is_known:  # else to create the key is the faster way
            self._held = await read_grant_requests(self._kv, self._key)
        self._is_known = True
        await self._change(lambda asks: (*self._others(asks), self._ask))

    async def look(self) -> GrantRequest | None:
        """How the ask stands; None if it is gone."""
        self._held = await read_grant_requests(self._kv, self._key)
        return self._held.find(self._ask)

    async def begin(self, epoch: int, *, is_granted: bool) -> bool:
        """Tell that the epoch runs now; False if the ask is gone, and with it the grant."""

        def change(asks: GrantRequests) -> GrantRequests:
            mine = next((ask for ask in asks if ask.is_same(self._ask)), None)
            if mine is None and is_granted:
                return asks
            return (*self._others(asks), msgspec.structs.replace(mine or self._ask, epoch=epoch))

        held = await self._change(change)
        return held.find(self._ask) is not None

    @property
    def begun_before(self) -> GrantRequest | None:
        """The ask of another replica that lists the same scope, and had begun before we had.

        Whoever begins puts itself at the end, by compare-and-set: one of two is always first.
        """
        for ask in self._held.requests:
            if ask.is_same(self._ask):
                return None
            if ask.scope == self._ask.scope and ask.epoch:
                return ask
        return None

    async def leave(self) -> None:
        """Take the ask away; it need not be there. If that fails the projector does it, later."""
        with suppress(BusError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_WITHIN.total_seconds()):
                await self._change(lambda asks: tuple(a for a in asks if not a.is_same(self._ask)))

    async def _change(
        self, change: Callable[[GrantRequests], GrantRequests]
    ) -> StoredGrantRequests:
        self._held = await change_grant_requests(self._kv, self._key, change, self._held)
        return self._held

    def _others(self, asks: GrantRequests) -> GrantRequests:
        mine = (self._ask.replica, self._ask.scope)
        return tuple(ask for ask in asks if (ask.replica, ask.scope) != mine)


class Grants:
    """The asks of one watcher for the resources of its cluster.

    Args:
        kv: the bucket.
        cluster: whose resources.
        replica: who asks.
        patience: how long to wait for a sign of the projector; 0 never asks.
    """

    def __init__(self, *, kv: KeyValue, cluster: str, replica: str, patience: timedelta) -> None:
        self._kv = kv
        self._cluster = cluster
        self._replica = replica
        self._patience = patience.total_seconds()
        self._metrics = metrics.grant_metrics(cluster)
        self._woken = asyncio.Event()
        self._known: set[str] = set()
        self._asked = 0
        self._open = 0
        self._idle_since = time.monotonic()
        # Whether the projector was silent for too long; what asks next need not wait as long again.
        self._is_silent = False
        # Whether an epoch runs that nobody has granted.
        self._is_alone_taken = False

    def wake(self) -> None:
        """Look at the asks now: the projector says that it has answered."""
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    @asynccontextmanager
    async def granted(
        self, resource: Resource, scope: str, size: int, waits: Callable[[], None]
    ) -> AsyncGenerator[Grant]:
        """Wait for the leave to list, and hold it as long as the block lasts.

        A block that ends without a complete epoch gives the grant back; otherwise the projector
        takes it when it has read the epoch to its end.

        Args:
            resource: what to list.
            scope: the hash of what narrows it.
            size: how many bytes it will publish; 0 if nobody knows.
            waits: called once if that takes long.

        Raises:
            BusError: nothing is known.
        """
        if not self._patience:
            yield Grant(0, was_awaited=False)
            return
        place = self._place(resource, scope, size)
        grant: _AskedGrant | None = None
        self._open_one()
        try:
            grant = await self._admit(place, waits)
            with self._metrics.held.track_inprogress():
                yield grant
        finally:
            self._close(is_alone=grant is not None and not grant.is_granted)
            if grant is None or not grant.is_complete:
                await place.leave()

    def _place(self, resource: Resource, scope: str, size: int) -> _Place:
        key = kv_grant(self._cluster, resource.group, resource.plural)
        # Never the same twice, also when the clock was set back.
        self._asked = max(now_ms(), self._asked + 1)
        ask = GrantRequest(
            replica=self._replica,
            scope=scope,
            since=self._asked,
            patience=self._patience,
            bytes=size,
        )
        is_known = key in self._known
        self._known.add(key)
        return _Place(self._kv, key, ask, is_known=is_known)

    def _open_one(self) -> None:
        idle = time.monotonic() - self._idle_since
        if not self._open and idle > _SILENCE_LASTS.total_seconds():
            self._is_silent = False
        self._open += 1

    def _close(self, *, is_alone: bool) -> None:
        self._open -= 1
        self._idle_since = time.monotonic()
        if is_alone:
            self._is_alone_taken = False
            self.wake()

    async def _admit(self, place: _Place, waits: Callable[[], None]) -> _AskedGrant:
        """Wait for the projector's yes, or until it was silent for long and nobody else runs."""
        with self._metrics.waiting.track_inprogress():
            wait = _Wait(self._patience, waits)
            woken = self._woken
            await place.take()
            while not self._may_go_ahead(wait):
                await wait.pause(woken)
                woken = self._woken
                found = await place.look()
                if found is None:
                    await place.take()  # the bucket was lost, or we were thought to be dead
                elif found.answer is not None and found.answer != wait.heard:
                    wait.hear(found.answer)
                    self._is_silent = False
                    if found.answer.granted:
                        return _AskedGrant(place, found.answer, was_awaited=wait.is_long)
        self._is_alone_taken = True
        self._metrics.unanswered.inc()
        return _AskedGrant(place, None, was_awaited=wait.is_long)

    def _may_go_ahead(self, wait: _Wait) -> bool:
        if wait.is_over and not self._is_silent:
            self._is_silent = True
            log.warning("no_grant_in_time", cluster=self._cluster, waited=self._patience)
        return self._is_silent and not self._is_alone_taken


class _Wait:
    """How long somebody waits, and when to look again."""

    def __init__(self, patience: float, waits: Callable[[], None]) -> None:
        self._patience = patience
        self._waits: Callable[[], None] | None = waits
        self._started = self._quiet_since = time.monotonic()
        self._look = _FIRST_LOOK.total_seconds()
        self.heard: GrantAnswer | None = None

    @property
    def is_long(self) -> bool:
        """Whether others might want to know of it."""
        return time.monotonic() - self._started >= _TOLD_AFTER.total_seconds()

    @property
    def is_over(self) -> bool:
        """Whether the projector has been silent for too long."""
        return time.monotonic() - self._quiet_since >= self._patience

    def hear(self, answer: GrantAnswer) -> None:
        """There was a sign of it."""
        self.heard = answer
        self._quiet_since = time.monotonic()

    async def pause(self, woken: asyncio.Event) -> None:
        """Wait until somebody wakes us, or it is time to look."""
        if self._waits is not None and self.is_long:
            self._waits()
            self._waits = None
        left = self._quiet_since + self._patience - time.monotonic()
        within = min(self._look, left) if left > 0 else self._look
        self._look = min(2 * self._look, _LAST_LOOK.total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await woken.wait()
