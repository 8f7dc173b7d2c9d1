"""Grant epochs to watchers, few at once over the whole fleet (rule W7).

What runs is in the grant keys, so a restarted projector, or a second one, goes on with what it
reads there. A turn of the loop: read the keys that were written, end what is over, grant what fits
in the order of asking, and give those who wait a sign of life. A grant is over when the epoch's end
has been read from the stream, when its watcher took its ask back, or when nothing of it arrives any
more.

A watcher can write its own answers. So the order of asking is what this process has seen, and what
runs counts as no more than its cluster's share unless this process has granted it.
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
from fleetbus_reconciler.list_grants.allotment import Allotment, Patience, StreamRoom, measure_room
from fleetbus_reconciler.list_grants.grant_keys import AT_ONCE, GrantKeys, chunks
from fleetbus_reconciler.list_grants.turn import Epoch, Place, PlaceIdentity, Turn
from fleetbus_reconciler.settings import ReconcilerSettings

log = structlog.get_logger()

_TICK: Final = timedelta(milliseconds=250)
_PAUSE: Final = timedelta(seconds=1)
_BEGIN_WITHIN: Final = timedelta(seconds=10)
"""A watcher that lives tells at once that it has begun; so the asks of the dead hold up nobody."""
_MEASURED_FOR: Final = timedelta(milliseconds=50)
_ENDS_KEPT: Final = timedelta(minutes=1)
"""The end of a short epoch may be read before its ask says that it has begun."""
_SIGNS: Final = 4
"""Signs of life within the patience of one who waits."""
_LEAST_SILENCE_MS: Final = 250
"""However impatient it says it is."""

WAITING: Final = Gauge("fleetbus_epochs_waiting", "Epochs that watchers ask for, not granted yet.")
RUNNING: Final = Gauge("fleetbus_epochs_granted", "Epochs that run, as far as we know.")
ROOM: Final = Gauge("fleetbus_epochs_granted_bytes", "Room of the stream given to running epochs.")
EXPIRED: Final = Counter(
    "fleetbus_grants_expired_total", "Grants taken back because nothing was received of the epoch."
)


@dataclass(slots=True)
class _Known:
    """What this process knows of an ask, whatever stands beside it in the bucket.

    Attributes:
        received: when it was first seen, in ms: its place in the line.
        room: the bytes that we have granted it; None as long as we have granted nothing.
    """

    received: int
    room: int | None = None


@dataclass(slots=True)
class _Seen:
    """Since when a running ask is known; and what must be read of the stream to call it dead."""

    since: float
    read_to: int | None = None


class Granter:
    """The projector's part of the grants.

    Args:
        bus: to measure the stream, and to wake watchers.
        kv: the bucket.
        reader: tells how many objects are known of a resource.
        settings: how many at once.
    """

    def __init__(
        self, *, bus: Bus, kv: KeyValue, reader: SnapshotReader, settings: ReconcilerSettings
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._reader = reader
        self._settings = settings
        self._changed = asyncio.Event()
        self._keys = GrantKeys(bus=bus, kv=kv, on_write=self._changed.set)
        # Epochs whose end was read from the stream, and when: also those that nobody granted.
        self._ended: dict[Epoch, float] = {}
        self._known: dict[PlaceIdentity, _Known] = {}
        # Until the first turn is over, the answers in the bucket are all that is known.
        self._is_new = True
        # Running asks as they are now, with their epoch or before it; and when something of an
        # epoch last arrived.
        self._seen: dict[tuple[PlaceIdentity, int], _Seen] = {}
        self._arrived: dict[tuple[str, int], float] = {}
        self._patience = Patience()
        self._expired = LogOnce()
        self._room: StreamRoom | None = None
        self._measured_at = float("-inf")
        bus.on_reconnect(self.read_again)

    # --- what others tell -----------------------------------------------------------------------

    def note(self, events: Sequence[Event]) -> None:
        """Events were applied; those of running lists are a sign that these go on."""
        if not self._arrived:
            return
        now = time.monotonic()
        for event in events:
            epoch = (event.cluster, event.epoch.id)
            if event.verb is Verb.LISTED and epoch in self._arrived:
                self._arrived[epoch] = now

    def end(self, marker: EpochEnd) -> None:
        """The end of an epoch was read, and with it all that was before it on the stream."""
        epoch = Epoch(marker.cluster, marker.resource_key, marker.epoch.id)
        self._ended[epoch] = time.monotonic()
        self._changed.set()

    def read_again(self) -> None:
        """Writes may have been missed, or the bucket lost: read all keys, write the lost anew."""
        self._keys.read_again()
        self._changed.set()

    # --- for ever -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Grant until cancelled."""
        async with self._kv.follow(KV_GRANTS, self._keys.receive):
            while True:
                try:
                    await self._work()
                except BusError as e:
                    log.warning("grants_failed", error=str(e))
                    self.read_again()
                    await asyncio.sleep(_PAUSE.total_seconds())
                await self._wait()

    async def _wait(self) -> None:
        within = self._keys.look_within()
        if self._keys.held:
            within = min(within, _TICK.total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()

    async def _work(self) -> None:
        self._changed.clear()
        await self._keys.read()
        turn = Turn()
        places = list(self._keys.places())
        self._know(places)
        self._patience.begin_turn()
        running = [place for place in places if place.ask.is_running]
        self._remember(running)
        running = await self._end_what_is_over(turn, running)
        waiting = sorted((p for p in places if not p.ask.is_running), key=self._order)
        if waiting or running:
            waiting = await self._admit(turn, waiting, running)
            self._give_signs(turn, waiting)
        await self._write(turn)
        self._tell_metrics()

    # --- deciding -------------------------------------------------------------------------------

    def _know(self, places: Sequence[Place]) -> None:
        """Keep what is known of these, and of no others."""
        now = now_ms()
        known: dict[PlaceIdentity, _Known] = {}
        for place in places:
            answer = place.ask.answer if self._is_new else None
            received = min(answer.received, now) if answer is not None else now
            known[place.identity] = self._known.get(place.identity) or _Known(received)
        self._known = known
        self._is_new = False

    def _order(self, place: Place) -> tuple[int, int]:
        """First received, first served; new ones by the time at which they asked."""
        return (self._known[place.identity].received, place.ask.since)

    def _remember(self, running: Sequence[Place]) -> None:
        """Keep what is known of these, and of no others."""
        now = time.monotonic()
        ended_before = now - _ENDS_KEPT.total_seconds()
        self._ended = {epoch: at for epoch, at in self._ended.items() if at > ended_before}
        states = [(place.identity, place.ask.epoch) for place in running]
        self._seen = {state: self._seen.get(state) or _Seen(now) for state in states}
        self._arrived = {
            p.listing: self._arrived.get(p.listing, now) for p in running if p.ask.epoch
        }

    async def _end_what_is_over(self, turn: Turn, running: Sequence[Place]) -> Sequence[Place]:
        """What goes on; the rest is ended."""
        going_on: list[Place] = []
        for place in running:
            if place.epoch in self._ended:
                turn.end(place)
            elif await self._is_dead(place):
                EXPIRED.inc()
                if self._expired.should_log(key=place.cluster):
                    log.warning("grant_expired", key=place.key, replica=place.ask.replica)
                turn.end(place)
            else:
                going_on.append(place)
        return going_on

    async def _is_dead(self, place: Place) -> bool:
        """Whether its watcher never began, or has sent nothing for so long."""
        now = time.monotonic()
        seen = self._seen[place.identity, place.ask.epoch]
        if not place.ask.epoch:
            return now - seen.since >= _BEGIN_WITHIN.total_seconds()
        last = max(seen.since, self._arrived[place.listing])
        if now - last < self._settings.epoch_idle.total_seconds():
            seen.read_to = None
            return False
        room = await self._measure()
        if room is None:
            return False
        # What it has sent may only be unread: the projector is slow, or has no store.
        seen.read_to = room.last if seen.read_to is None else seen.read_to
        return room.is_read(seen.read_to)

    async def _admit(
        self, turn: Turn, waiting: Sequence[Place], running: Sequence[Place]
    ) -> Sequence[Place]:
        """Grant what fits; answers who has to wait."""
        if not waiting and all(place.ask.is_granted for place in running):
            return waiting
        room = await self._measure()
        if room is None:
            return waiting
        allotment = Allotment(self._settings, room)
        for place in running:
            await self._count(turn, allotment, place)
        if room.is_exceeded:
            return waiting
        granted = await self._grant(turn, allotment, waiting)
        return [place for place in waiting if place.identity not in granted]

    async def _count(self, turn: Turn, allotment: Allotment, place: Place) -> None:
        """What runs takes its part, whoever has granted it."""
        answer = place.ask.answer
        if answer is None or not answer.granted:
            # It went ahead while there was no answer; it counts, and learns that we are here.
            answer = self._granted(place, await self._size(allotment, place))
            turn.answer(place, answer)
        room = self._known[place.identity].room
        if room is None:
            allotment.take(place.cluster, answer.bytes, whole=False)
        else:
            allotment.take(place.cluster, room, whole=self._patience.is_left(place.cluster))

    async def _grant(
        self, turn: Turn, allotment: Allotment, waiting: Sequence[Place]
    ) -> AbstractSet[PlaceIdentity]:
        """Grant what fits, in the order of asking.

        Nobody overtakes one who waits for room, or a large epoch would never find any; unless
        because of the same cluster others have waited for long enough.
        """
        granted: set[PlaceIdentity] = set()
        used_up: set[str] = set()
        for place in waiting:
            cluster = place.cluster
            if allotment.is_full:
                break
            if cluster in used_up or not allotment.has_slot(cluster):
                continue
            size = await self._size(allotment, place)
            if not allotment.has_share(cluster, size):
                used_up.add(cluster)  # its own do not overtake it either
                continue
            whole = self._patience.is_left(cluster)
            if allotment.fits(size, whole=whole):
                allotment.take(cluster, size, whole=whole)
                turn.answer(place, self._granted(place, size))
                self._known[place.identity].room = size
                granted.add(place.identity)
            elif whole:
                self._patience.hold_up(allotment.whole or cluster)
                break
        return granted

    async def _measure(self) -> StreamRoom | None:
        now = time.monotonic()
        if self._room is None or now - self._measured_at >= _MEASURED_FOR.total_seconds():
            self._room = await measure_room(self._bus, self._settings.epochs_percent)
            self._measured_at = now
        return self._room

    async def _size(self, allotment: Allotment, place: Place) -> int:
        known = 0
        if not place.ask.bytes:
            # Redis is away: then as if nothing was known.
            with suppress(RedisError):
                known = await self._reader.count(place.cluster, place.epoch.resource_key)
        return allotment.size(place.ask.bytes, known)

    def _give_signs(self, turn: Turn, waiting: Sequence[Place]) -> None:
        now = now_ms()
        for place in waiting:
            answer = place.ask.answer
            silence = max(place.ask.patience * 1000 / _SIGNS, _LEAST_SILENCE_MS)
            # Also when our clock was set back.
            if answer is None or not 0 <= now - answer.at < silence:
                received = self._known[place.identity].received
                turn.answer(place, GrantAnswer(received=received, at=now))

    def _granted(self, place: Place, room: int) -> GrantAnswer:
        received = self._known[place.identity].received
        return GrantAnswer(received=received, at=now_ms(), granted=True, bytes=room)

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, turn: Turn) -> None:
        for keys in chunks(turn.keys, AT_ONCE):
            await asyncio.gather(*(self._write_one(turn, key) for key in keys))
        for cluster in sorted(turn.granted):
            await notify_granted(self._bus, cluster)

    async def _write_one(self, turn: Turn, key: str) -> None:
        held = self._keys.held.get(key, NOT_READ)
        try:
            held = await change_grant_requests(
                self._kv, key, lambda asks: turn.change(key, asks), held
            )
        except GrantRequestsContended as e:
            # A watcher has rights for its own keys: the turns of others go on (B18).
            log.warning("grant_contended", key=key, error=str(e))
            held = await read_grant_requests(self._kv, key)
        self._keys.keep(key, held)

    def _tell_metrics(self) -> None:
        asks = [place.ask for place in self._keys.places()]
        WAITING.set(sum(not ask.is_running for ask in asks))
        RUNNING.set(sum(ask.is_running for ask in asks))
        ROOM.set(sum(ask.answer.bytes for ask in asks if ask.is_granted and ask.answer))
