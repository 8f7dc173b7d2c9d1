"""The grant keys of the bucket as the projector knows them (rule W7).

They are read in pages, and their writes are heard. A watcher writes what it likes below its own
cluster, so what is kept of one cluster has limits: in keys, in asks and in bytes.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import structlog
from prometheus_client import Counter

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_pages
from fleetbus.bus.key_value import KeyValue
from fleetbus.process.log_once import LogOnce
from fleetbus.watchers.grant_requests import (
    MOST_BYTES,
    NOBODY_ASKS,
    HeldAsks,
    change_asks,
    held_asks,
    read_asks,
)
from fleetbus_proto.keys import KV_GRANTS, split_kv_grant
from fleetbus_reconciler.list_grants.turn import Place

log = structlog.get_logger()

T = TypeVar("T")

AT_ONCE: Final = 32
_READ_ALL: Final = timedelta(minutes=5)
"""Writes are heard; this is for the one that was not."""
_SETTLES: Final = timedelta(milliseconds=4)
_SETTLED: Final = timedelta(seconds=1)
"""We hear a write when it is sent, and the bucket holds it a moment later: we look at once, then
after twice the time again and again. One that lost its compare-and-set never comes."""
_ASKS_OF_CLUSTER: Final = 500
"""Many more than lists that a cluster's watchers run at once; each costs time in every turn."""
_BYTES_OF_CLUSTER: Final = 1024**2
"""Ten times what so many asks with their answers take."""
_HEARD_OF_CLUSTER: Final = 2_000
"""Keys that wait for a look; more are found when all keys are read."""

REFUSED: Final = Counter(
    "fleetbus_grant_keys_refused_total", "Values of grant keys that were no asks, or too many."
)


@dataclass(slots=True)
class _Heard:
    """A write that was heard, and when to look for it (again)."""

    digest: int
    """Of the value: that one may be long, and is read from the bucket."""
    since: float
    look_at: float
    pause: float = _SETTLES.total_seconds()

    def look_later(self) -> bool:
        """It is not there yet; False if it will not come any more."""
        now = time.monotonic()
        self.look_at = now + self.pause
        self.pause *= 2
        return now - self.since < _SETTLED.total_seconds()


class GrantKeys:
    """The grant keys of the whole fleet.

    Args:
        bus: to read all of them.
        kv: the bucket.
        on_heard: called when there is something to read.

    Attributes:
        held: the keys with asks, as they were last seen.
    """

    def __init__(self, *, bus: Bus, kv: KeyValue, on_heard: Callable[[], None]) -> None:
        self._bus = bus
        self._kv = kv
        self._on_heard = on_heard
        self.held: dict[str, HeldAsks] = {}
        # How many asks and bytes of each cluster these are, and the writes since then.
        self._asks_of: collections.Counter[str] = collections.Counter()
        self._bytes_of: collections.Counter[str] = collections.Counter()
        self._heard: dict[str, dict[str, _Heard]] = {}
        self._read_all_at = float("-inf")
        self._refused = LogOnce()

    def places(self) -> Iterator[Place]:
        """Every ask that is known."""
        for key, held in self.held.items():
            for ask in held.asks:
                yield Place(key, ask)

    def read_again(self) -> None:
        """Writes may have been missed, or the bucket lost: the next `read` reads all keys."""
        self._read_all_at = float("-inf")

    def hear(self, key: str, value: bytes) -> None:
        """Somebody writes a key."""
        if not _is_ours(key):
            return
        if len(value) > MOST_BYTES:  # kept by the bucket or not, it is no ask
            self._refuse(key, f"more than {MOST_BYTES} bytes")
        elif self.held.get(key, NOBODY_ASKS).value != value:  # else it is our own write
            heard = self._heard.setdefault(_cluster(key), {})
            if key not in heard and len(heard) >= _HEARD_OF_CLUSTER:
                self._refuse(key, f"more than {_HEARD_OF_CLUSTER} keys of one cluster at a time")
                return
            now = time.monotonic()
            heard[key] = _Heard(hash(value), since=now, look_at=now)
            self._on_heard()

    def look_within(self) -> float:
        """In how many seconds there is something to read."""
        looks = [heard.look_at for of in self._heard.values() for heard in of.values()]
        now, read_all_in = time.monotonic(), _READ_ALL.total_seconds()
        return min(read_all_in, max(min(looks) - now, 0)) if looks else read_all_in

    async def read(self) -> None:
        """Read what was heard, and all keys now and then.

        Raises:
            BusError: not everything was read.
        """
        if time.monotonic() - self._read_all_at >= _READ_ALL.total_seconds():
            await self._read_all()
        await self._read_heard()

    def keep(self, key: str, held: HeldAsks) -> None:
        """Note what a key holds."""
        cluster, problem = _cluster(key), held.problem
        before = self.held.pop(key, NOBODY_ASKS)
        if before.asks:
            self._asks_of[cluster] -= len(before.asks)
            self._bytes_of[cluster] -= len(before.value)
        if self._asks_of[cluster] + len(held.asks) > _ASKS_OF_CLUSTER:
            problem = f"more than {_ASKS_OF_CLUSTER} asks of one cluster"
        elif self._bytes_of[cluster] + len(held.value) > _BYTES_OF_CLUSTER:
            problem = f"more than {_BYTES_OF_CLUSTER} bytes of asks of one cluster"
        elif held.asks and _is_ours(key):
            self.held[key] = held
            self._asks_of[cluster] += len(held.asks)
            self._bytes_of[cluster] += len(held.value)
        if problem:
            self._refuse(key, problem)

    def _refuse(self, key: str, problem: str) -> None:
        REFUSED.inc()
        if self._refused.should_log(key=_cluster(key)):
            log.warning("asks_refused", key=key, error=problem)

    async def _read_all(self) -> None:
        lost = set(self.held)
        async for page in scan_pages(self._bus, KV_GRANTS):
            lost -= page.keys()
            for key, entry in page.items():
                self.keep(key, held_asks(entry))
        self._read_all_at = time.monotonic()
        for key in lost & self.held.keys():
            await self._restore(key)

    async def _restore(self, key: str) -> None:
        """No key ever goes: one that is gone was lost with its bucket, and runs all the same."""
        asks, held = self.held[key].asks, await read_asks(self._kv, key)
        if not held.revision:
            log.warning("grant_was_lost", key=key)
            held = await change_asks(self._kv, key, lambda found: found or asks, held)
        self.keep(key, held)

    async def _read_heard(self) -> None:
        now = time.monotonic()
        due: list[tuple[str, _Heard]] = []
        for of_cluster in self._heard.values():
            looks = [(key, heard) for key, heard in of_cluster.items() if heard.look_at <= now]
            # One that writes without end waits for the next turn, not the others for it.
            due.extend(looks[:AT_ONCE])
        for chunk in chunks(due, AT_ONCE):
            await asyncio.gather(*(self._look(key, heard) for key, heard in chunk))
        self._heard = {cluster: of for cluster, of in self._heard.items() if of}

    async def _look(self, key: str, heard: _Heard) -> None:
        # A key that nobody asks by is not kept; that we have emptied it is no news either.
        held = self.held.get(key, NOBODY_ASKS)
        if hash(held.value) != heard.digest:
            held = await read_asks(self._kv, key)
            self.keep(key, held)
        is_there = hash(held.value) == heard.digest
        of_cluster = self._heard[_cluster(key)]
        # Another write may have been heard meanwhile.
        if of_cluster.get(key) is heard and (is_there or not heard.look_later()):
            del of_cluster[key]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Parts of so many items, the last one of what is left."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _cluster(key: str) -> str:
    """Whose key it is, also of one that is not the key of a grant."""
    return key.partition(".")[0]


def _is_ours(key: str) -> bool:
    """Whether it is a key of a grant; a watcher may write any below its cluster (B18)."""
    try:
        split_kv_grant(key)
    except ValueError:
        return False
    return True
