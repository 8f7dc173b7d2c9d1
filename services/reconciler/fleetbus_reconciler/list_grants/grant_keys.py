"""Follows the grant keys of the whole fleet in the bucket (rule W7).

They are read in pages, and their writes are received. A watcher may write anything below its own
cluster, so what is kept of one cluster is limited: in keys, in requests and in bytes.
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
from fleetbus.process.pauses import pause_of
from fleetbus.watchers.grant_requests import (
    MOST_BYTES,
    NO_GRANT_REQUESTS,
    StoredGrantRequests,
    change_grant_requests,
    decode_grant_requests,
    read_grant_requests,
)
from fleetbus_proto.keys import KV_GRANTS, split_kv_grant
from fleetbus_reconciler.list_grants.decisions import Candidate

log = structlog.get_logger()

T = TypeVar("T")

CONCURRENCY: Final = 32
_READ_ALL: Final = timedelta(minutes=5)
"""Writes are received; this is for one that was lost."""
_SETTLES: Final = timedelta(milliseconds=4)
_SETTLED: Final = timedelta(seconds=1)
"""A write is received when it is sent, and is in the bucket a moment later: it is read at once,
then with doubling pauses. A write that lost its compare-and-set never comes."""
_REQUESTS_OF_CLUSTER: Final = 500
"""Many more than lists that a cluster's watchers run at once; each costs time in every turn."""
_BYTES_OF_CLUSTER: Final = 1024**2
"""Ten times what so many requests with their answers take."""
_WRITES_PER_CLUSTER: Final = 2_000
"""Keys that wait to be read; more are found when all keys are read."""

REFUSED: Final = Counter(
    "fleetbus_grant_keys_refused_total", "Values of grant keys that were malformed, or too many."
)


@dataclass(slots=True)
class _Write:
    """A write that was received, and when to read it (again)."""

    digest: int
    """Digest of the value, which may be long and is read from the bucket."""
    since: float
    due_at: float
    looks: int = 0

    def postpone(self) -> bool:
        """Try again later; False if it will not come any more."""
        now = time.monotonic()
        self.looks += 1
        self.due_at = now + pause_of(self.looks, _SETTLES, _SETTLED).total_seconds()
        return now - self.since < _SETTLED.total_seconds()


class GrantKeys:
    """Keeps the requests of all grant keys.

    Args:
        bus: to read all of them.
        kv: the bucket.
        on_write: called when there is something to read.

    Attributes:
        held: the keys with requests, as they were last read.
    """

    def __init__(self, *, bus: Bus, kv: KeyValue, on_write: Callable[[], None]) -> None:
        self._bus = bus
        self._kv = kv
        self._on_write = on_write
        self.held: dict[str, StoredGrantRequests] = {}
        # How many requests and bytes of each cluster these are, and the writes since then.
        self._requests_of: collections.Counter[str] = collections.Counter()
        self._bytes_of: collections.Counter[str] = collections.Counter()
        self._written: dict[str, dict[str, _Write]] = {}
        self._read_all_at = float("-inf")
        # Whether the next one is the last for minutes; see `read`.
        self._is_repeated = False
        self._refused = LogOnce()

    def candidates(self) -> Iterator[Candidate]:
        """Yield every known request."""
        for key, stored in self.held.items():
            for request in stored.requests:
                yield Candidate(key, request)

    def read_again(self) -> None:
        """Make the next `read` read all keys: writes may have been missed, or the bucket lost."""
        self._read_all_at = float("-inf")
        self._is_repeated = False

    def receive(self, key: str, value: bytes) -> None:
        """Receive a write of a key."""
        if not _is_ours(key):
            return
        if len(value) > MOST_BYTES:  # too long for a request, whether the bucket keeps it or not
            self._refuse(key, f"more than {MOST_BYTES} bytes")
        elif self.held.get(key, NO_GRANT_REQUESTS).value != value:  # else it is our own write
            write = self._written.setdefault(_cluster(key), {})
            if key not in write and len(write) >= _WRITES_PER_CLUSTER:
                self._refuse(key, f"more than {_WRITES_PER_CLUSTER} keys of one cluster at a time")
                return
            now = time.monotonic()
            write[key] = _Write(hash(value), since=now, due_at=now)
            self._on_write()

    def next_read_in(self) -> float:
        """Seconds until there is something to read."""
        looks = [write.due_at for of in self._written.values() for write in of.values()]
        return max(min([*looks, self._read_all_at]) - time.monotonic(), 0)

    async def read(self) -> None:
        """Read what was written, and all keys every few minutes.

        A write that was sent before the subscription is not received, and may be stored only after
        the keys were read: so they are read a second time, once such a write has settled.

        Raises:
            BusError: not everything was read.
        """
        if time.monotonic() >= self._read_all_at:
            pause = _READ_ALL if self._is_repeated else _SETTLED
            self._read_all_at = time.monotonic() + pause.total_seconds()
            self._is_repeated = True
            await self._read_all()
        await self._read_written()

    def keep(self, key: str, requests: StoredGrantRequests) -> None:
        """Note what a key holds."""
        cluster, problem = _cluster(key), requests.problem
        before = self.held.pop(key, NO_GRANT_REQUESTS)
        if before.requests:
            self._requests_of[cluster] -= len(before.requests)
            self._bytes_of[cluster] -= len(before.value)
        if self._requests_of[cluster] + len(requests.requests) > _REQUESTS_OF_CLUSTER:
            problem = f"more than {_REQUESTS_OF_CLUSTER} requests of one cluster"
        elif self._bytes_of[cluster] + len(requests.value) > _BYTES_OF_CLUSTER:
            problem = f"more than {_BYTES_OF_CLUSTER} bytes of requests of one cluster"
        elif requests.requests and _is_ours(key):
            self.held[key] = requests
            self._requests_of[cluster] += len(requests.requests)
            self._bytes_of[cluster] += len(requests.value)
        if problem:
            self._refuse(key, problem)

    def _refuse(self, key: str, problem: str) -> None:
        REFUSED.inc()
        if self._refused.should_log(key=_cluster(key)):
            log.warning("grant_requests_refused", key=key, error=problem)

    async def _read_all(self) -> None:
        lost = set(self.held)
        async for page in scan_pages(self._bus, KV_GRANTS):
            lost -= page.keys()
            for key, entry in page.items():
                self.keep(key, decode_grant_requests(entry))
        for key in lost & self.held.keys():
            await self._restore(key)

    async def _restore(self, key: str) -> None:
        """Write a key again that was lost with the bucket: keys are never deleted on purpose."""
        requests, stored = self.held[key].requests, await read_grant_requests(self._kv, key)
        if not stored.revision:
            log.warning("grant_requests_restored", key=key)
            stored = await change_grant_requests(
                self._kv, key, lambda present: present or requests, stored
            )
        self.keep(key, stored)

    async def _read_written(self) -> None:
        now = time.monotonic()
        due: list[tuple[str, _Write]] = []
        for of_cluster in self._written.values():
            looks = [(key, write) for key, write in of_cluster.items() if write.due_at <= now]
            # A cluster that writes without end waits for the next turn, not the others for it.
            due.extend(looks[:CONCURRENCY])
        for chunk in chunks(due, CONCURRENCY):
            await asyncio.gather(*(self._look(key, write) for key, write in chunk))
        self._written = {cluster: of for cluster, of in self._written.items() if of}

    async def _look(self, key: str, write: _Write) -> None:
        # A key without requests is not kept; our own write that emptied it needs no read.
        stored = self.held.get(key, NO_GRANT_REQUESTS)
        if hash(stored.value) != write.digest:
            stored = await read_grant_requests(self._kv, key)
            self.keep(key, stored)
        is_there = hash(stored.value) == write.digest
        of_cluster = self._written[_cluster(key)]
        # Another write may have been received meanwhile.
        if of_cluster.get(key) is write and (is_there or not write.postpone()):
            del of_cluster[key]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split into parts of so many items."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _cluster(key: str) -> str:
    """The cluster of a key, even if it is not the key of a grant."""
    return key.partition(".")[0]


def _is_ours(key: str) -> bool:
    """Whether it is the key of a grant; a watcher may write any below its cluster (rule B18)."""
    try:
        split_kv_grant(key)
    except ValueError:
        return False
    return True
