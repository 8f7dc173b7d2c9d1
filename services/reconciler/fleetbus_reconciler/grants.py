"""Grant epochs to watchers, few at once over the whole fleet (rule W7).

All that is known is in the grant keys, so a restarted projector, or a second one, goes on with
what it reads there. A turn of the loop: read the keys that were written, end what is over, grant
what fits in the order of asking, and give those who wait a sign of life. A grant is over when the
epoch's end has been read from the stream, when its watcher took its ask back, or when nothing of
it arrives any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

import msgspec
import structlog
from prometheus_client import Counter, Gauge
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import KeyValue
from fleetbus.clock import now_ms
from fleetbus.errors import BusError
from fleetbus.snapshot.read import SnapshotReader
from fleetbus.watchers.grants import (
    NOBODY_ASKS,
    UNSEEN,
    Answer,
    Ask,
    Asks,
    AsksContended,
    HeldAsks,
    change_asks,
    held_asks,
    read_asks,
    wake_for_grants,
)
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import KV_GRANTS, split_kv_grant
from fleetbus_proto.subjects import Verb
from fleetbus_reconciler.allotment import Allotment, StreamRoom, measure_room
from fleetbus_reconciler.settings import ReconcilerSettings

log = structlog.get_logger()

T = TypeVar("T")

_TICK: Final = timedelta(milliseconds=250)
_READ_ALL: Final = timedelta(minutes=5)
"""Writes are heard; this is for the one that was not."""
_PAUSE: Final = timedelta(seconds=1)
_BEGIN_WITHIN: Final = timedelta(seconds=10)
"""A watcher that lives tells at once that it has begun; so the asks of the dead hold up nobody."""
_MEASURED_FOR: Final = timedelta(milliseconds=50)
_ENDS_KEPT: Final = timedelta(minutes=1)
"""The end of a short epoch may be read before its ask says that it has begun."""
_SETTLES: Final = timedelta(milliseconds=4)
_SETTLED: Final = timedelta(seconds=1)
"""We hear a write when it is sent, and the bucket holds it a moment later: we look at once, then
after twice the time again and again. One that lost its compare-and-set never comes."""
_SIGNS: Final = 4
"""Signs of life within the patience of one who waits."""
_AT_ONCE: Final = 32

WAITING: Final = Gauge("fleetbus_epochs_waiting", "Epochs that watchers ask for, not granted yet.")
RUNNING: Final = Gauge("fleetbus_epochs_granted", "Epochs that run, as far as we know.")
ROOM: Final = Gauge("fleetbus_epochs_granted_bytes", "Room of the stream given to running epochs.")
EXPIRED: Final = Counter(
    "fleetbus_grants_expired_total", "Grants taken back because nothing was heard of the epoch."
)


class _Place(NamedTuple):
    """One ask of one resource."""

    key: str
    ask: Ask

    @property
    def cluster(self) -> str:
        return split_kv_grant(self.key)[0]

    @property
    def order(self) -> tuple[float, int]:
        """Who was heard first comes first; new ones by the time at which they asked."""
        answer = self.ask.answer
        return (answer.heard if answer is not None else float("inf"), self.ask.since)

    @property
    def identity(self) -> tuple[str, str, str, int, int]:
        """The ask before or after its epoch has begun."""
        return (self.key, self.ask.replica, self.ask.scope, self.ask.since, self.ask.epoch)

    @property
    def listing(self) -> tuple[str, int]:
        """What the events of its epoch have in common."""
        return (self.cluster, self.ask.epoch)

    @property
    def epoch(self) -> _Epoch:
        cluster, group, resource = split_kv_grant(self.key)
        return _Epoch(cluster, f"{group}/{resource}", self.ask.epoch)


class _Epoch(NamedTuple):
    cluster: str
    resource_key: str
    id: int


@dataclass(slots=True)
class _Heard:
    """A write that was heard, and when to look for it (again)."""

    value: bytes
    since: float
    look_at: float
    pause: float = _SETTLES.total_seconds()

    def look_later(self) -> bool:
        """It is not there yet; False if it will not come any more."""
        now = time.monotonic()
        self.look_at = now + self.pause
        self.pause *= 2
        return now - self.since < _SETTLED.total_seconds()


@dataclass(slots=True)
class _Seen:
    """Since when a running ask is known; and what must be read of the stream to call it dead."""

    since: float
    read_to: int | None = None


class _Turn:
    """What one turn changes: an answer for an ask, or None for one that is over.

    Attributes:
        granted: the clusters that are waited for.
    """

    def __init__(self) -> None:
        self.granted: set[str] = set()
        self._answers: dict[str, list[tuple[Ask, Answer | None]]] = defaultdict(list)

    def answer(self, place: _Place, answer: Answer) -> None:
        self._answers[place.key].append((place.ask, answer))
        if answer.granted:
            self.granted.add(place.cluster)

    def end(self, place: _Place) -> None:
        self._answers[place.key].append((place.ask, None))

    @property
    def keys(self) -> Sequence[str]:
        return list(self._answers)

    def change(self, key: str, asks: Asks) -> Asks:
        """The asks of a key after the turn; those that changed meanwhile stay as they are."""
        kept: list[Ask] = []
        for ask in asks:
            found = [pair for pair in self._answers[key] if pair[0].is_same(ask)]
            told, answer = found[0] if found else (ask, ask.answer)
            if answer is None:
                if told.epoch != ask.epoch:
                    kept.append(ask)  # thought dead, but it has begun this moment
            elif ask.is_granted:
                kept.append(ask)  # another projector was faster
            else:
                kept.append(msgspec.structs.replace(ask, answer=answer))
        return tuple(kept)


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
        # Keys with asks, as we last saw them; and the writes since then.
        self._held: dict[str, HeldAsks] = {}
        self._heard: dict[str, _Heard] = {}
        self._read_all_at = float("-inf")
        # Epochs whose end was read from the stream, and when: also those that nobody granted.
        self._ended: dict[_Epoch, float] = {}
        # Running asks as they are now, and when something of an epoch last arrived.
        self._seen: dict[tuple[str, str, str, int, int], _Seen] = {}
        self._arrived: dict[tuple[str, int], float] = {}
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
        epoch = _Epoch(marker.cluster, marker.resource_key, marker.epoch.id)
        self._ended[epoch] = time.monotonic()
        self._changed.set()

    def read_again(self) -> None:
        """Writes may have been missed, or the bucket lost: read all keys, write the lost anew."""
        self._read_all_at = float("-inf")
        self._changed.set()

    # --- for ever -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Grant until cancelled."""
        async with self._kv.follow(KV_GRANTS, self._hear):
            while True:
                try:
                    await self._work()
                except BusError as e:
                    log.warning("grants_failed", error=str(e))
                    self.read_again()
                    await asyncio.sleep(_PAUSE.total_seconds())
                await self._wait()

    def _hear(self, key: str, value: bytes) -> None:
        if not _is_ours(key):
            return
        if self._held.get(key, NOBODY_ASKS).value != value:  # else it is our own write
            now = time.monotonic()
            self._heard[key] = _Heard(value, since=now, look_at=now)
            self._changed.set()

    async def _wait(self) -> None:
        within = (_TICK if self._held else _READ_ALL).total_seconds()
        looks = [heard.look_at for heard in self._heard.values()]
        if looks:
            within = min(within, max(min(looks) - time.monotonic(), 0))
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()

    async def _work(self) -> None:
        self._changed.clear()
        if time.monotonic() - self._read_all_at >= _READ_ALL.total_seconds():
            await self._read_all()
        await self._read_heard()
        turn = _Turn()
        places = list(self._places())
        running = [place for place in places if place.ask.is_running]
        self._remember(running)
        running = await self._end_what_is_over(turn, running)
        waiting = sorted((p for p in places if not p.ask.is_running), key=lambda p: p.order)
        if waiting or running:
            waiting = await self._admit(turn, waiting, running)
            self._give_signs(turn, waiting)
        await self._write(turn)
        self._tell_metrics()

    # --- reading --------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        found = await scan_keys(self._bus, KV_GRANTS)
        self._read_all_at = time.monotonic()
        for key in self._held.keys() - found.keys():
            await self._restore(key)
        for key, entry in found.items():
            self._keep(key, held_asks(key, entry))

    async def _restore(self, key: str) -> None:
        """No key ever goes: one that is gone was lost with its bucket, and runs all the same."""
        asks, held = self._held[key].asks, await read_asks(self._kv, key)
        if not held.revision:
            log.warning("grant_was_lost", key=key)
            held = await change_asks(self._kv, key, lambda found: found or asks, held)
        self._keep(key, held)

    async def _read_heard(self) -> None:
        now = time.monotonic()
        due = [(key, heard) for key, heard in self._heard.items() if heard.look_at <= now]
        for chunk in _chunks(due, _AT_ONCE):
            await asyncio.gather(*(self._look(key, heard) for key, heard in chunk))

    async def _look(self, key: str, heard: _Heard) -> None:
        # A key that nobody asks by is not kept; that we have emptied it is no news either.
        held = self._held.get(key, NOBODY_ASKS)
        if held.value != heard.value:
            held = await read_asks(self._kv, key)
            self._keep(key, held)
        is_there = held.value == heard.value
        # Another write may have been heard meanwhile.
        if self._heard.get(key) is heard and (is_there or not heard.look_later()):
            del self._heard[key]

    def _keep(self, key: str, held: HeldAsks) -> None:
        if held.asks and _is_ours(key):
            self._held[key] = held
        else:
            self._held.pop(key, None)

    def _places(self) -> Iterator[_Place]:
        for key, held in self._held.items():
            for ask in held.asks:
                yield _Place(key, ask)

    # --- deciding -------------------------------------------------------------------------------

    def _remember(self, running: Sequence[_Place]) -> None:
        """Keep what is known of these, and of no others."""
        now = time.monotonic()
        ended_before = now - _ENDS_KEPT.total_seconds()
        self._ended = {epoch: at for epoch, at in self._ended.items() if at > ended_before}
        self._seen = {p.identity: self._seen.get(p.identity) or _Seen(now) for p in running}
        self._arrived = {
            p.listing: self._arrived.get(p.listing, now) for p in running if p.ask.epoch
        }

    async def _end_what_is_over(self, turn: _Turn, running: Sequence[_Place]) -> Sequence[_Place]:
        """What goes on; the rest is ended."""
        going_on: list[_Place] = []
        for place in running:
            if place.epoch in self._ended:
                turn.end(place)
            elif await self._is_dead(place):
                log.warning("grant_expired", key=place.key, replica=place.ask.replica)
                EXPIRED.inc()
                turn.end(place)
            else:
                going_on.append(place)
        return going_on

    async def _is_dead(self, place: _Place) -> bool:
        """Whether its watcher never began, or has sent nothing for so long."""
        now = time.monotonic()
        seen = self._seen[place.identity]
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
        self, turn: _Turn, waiting: Sequence[_Place], running: Sequence[_Place]
    ) -> Sequence[_Place]:
        """Grant what fits; answers who has to wait.

        Nobody overtakes one who waits for room, or a large epoch would never find any.
        """
        if not waiting and all(place.ask.is_granted for place in running):
            return waiting
        room = await self._measure()
        if room is None:
            return waiting
        allotment = Allotment(self._settings, room)
        for place in running:
            answer = place.ask.answer
            if answer is None or not answer.granted:
                # It went ahead while there was no answer; it counts, and hears that we are here.
                answer = _granted(place, await self._size(allotment, place))
                turn.answer(place, answer)
            allotment.take(place.cluster, answer.room)
        left = list(waiting)
        for place in waiting:
            if allotment.is_full:
                break
            if not allotment.has_share(place.cluster):
                continue
            size = await self._size(allotment, place)
            if not allotment.fits(size):
                break
            allotment.take(place.cluster, size)
            turn.answer(place, _granted(place, size))
            left.remove(place)
        return left

    async def _measure(self) -> StreamRoom | None:
        now = time.monotonic()
        if self._room is None or now - self._measured_at >= _MEASURED_FOR.total_seconds():
            self._room = await measure_room(self._bus, self._settings.epochs_percent)
            self._measured_at = now
        return self._room

    async def _size(self, allotment: Allotment, place: _Place) -> int:
        known = 0
        if not place.ask.bytes:
            # Redis is away: then as if nothing was known.
            with suppress(RedisError):
                known = await self._reader.count(place.cluster, place.epoch.resource_key)
        return allotment.size(place.ask.bytes, known)

    def _give_signs(self, turn: _Turn, waiting: Sequence[_Place]) -> None:
        now = now_ms()
        for place in waiting:
            answer = place.ask.answer
            silence = place.ask.patience * 1000 / _SIGNS
            # Also when our clock was set back.
            if answer is None or not 0 <= now - answer.at < silence:
                heard = answer.heard if answer is not None else now
                turn.answer(place, Answer(heard=heard, at=now))

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, turn: _Turn) -> None:
        for keys in _chunks(turn.keys, _AT_ONCE):
            await asyncio.gather(*(self._write_one(turn, key) for key in keys))
        for cluster in sorted(turn.granted):
            await wake_for_grants(self._bus, cluster)

    async def _write_one(self, turn: _Turn, key: str) -> None:
        held = self._held.get(key, UNSEEN)
        try:
            held = await change_asks(self._kv, key, lambda asks: turn.change(key, asks), held)
        except AsksContended as e:
            # A watcher has rights for its own keys: the turns of others go on (B18).
            log.warning("grant_contended", key=key, error=str(e))
            held = await read_asks(self._kv, key)
        self._keep(key, held)

    def _tell_metrics(self) -> None:
        asks = [place.ask for place in self._places()]
        WAITING.set(sum(not ask.is_running for ask in asks))
        RUNNING.set(sum(ask.is_running for ask in asks))
        ROOM.set(sum(ask.answer.room for ask in asks if ask.is_granted and ask.answer))


def _is_ours(key: str) -> bool:
    """Whether it is a key of a grant; a watcher may write any below its cluster (B18)."""
    try:
        split_kv_grant(key)
    except ValueError:
        return False
    return True


def _granted(place: _Place, room: int) -> Answer:
    now = now_ms()
    heard = place.ask.answer.heard if place.ask.answer is not None else now
    return Answer(heard=heard, at=now, granted=True, room=room)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
