"""Limits how many epochs run at once, and how much of the stream they may fill (rule W7).

The stream drops its oldest messages when it is full. What has not been read by then is lost, so
what running epochs will publish, and what is unread, must fit into a part of it. The rest is for
live events, for consumers slower than the projector, and for estimates that are wrong.

What a watcher reports of itself may be false: no cluster counts with more than its slots and half
of the bytes, whatever it claims, except for a short time in which its epoch may run alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus_reconciler.settings import ReconcilerSettings

_MIN_SIZE: Final = 1024 * 1024
"""A list of a few objects may be twice as long the next time, which must not make it restart."""
_DEFAULT_MESSAGE: Final = 4096
"""Bytes of one listed object, while the stream is empty."""
_RECOVERY_FACTOR: Final = 10
"""A cluster that has blocked the others may do so again after this many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCapacity:
    """The capacity of the stream, and how far the projector has read it.

    Attributes:
        budget: bytes that running epochs may fill; None if the stream has no limit.
        message: bytes of an average message.
        unread: messages that the projector has not read yet.
        last: the sequence of the newest message.
        floor: the sequence up to which the projector has read everything.
    """

    budget: int | None
    message: int
    unread: int = 0
    last: int = 0
    floor: int = 0

    @property
    def backlog(self) -> int:
        """Bytes that the projector has not read yet."""
        return self.unread * self.message

    @property
    def is_exceeded(self) -> bool:
        """Whether the unread bytes alone exceed the budget."""
        return self.budget is not None and self.backlog > self.budget

    def is_read(self, sequence: int) -> bool:
        """Whether everything up to a sequence has been read."""
        return not self.unread or self.floor >= sequence


async def measure_capacity(bus: Bus, percent: int) -> StreamCapacity | None:
    """Ask the server; None if there is no stream, or no consumer of ours yet.

    Raises:
        BusError: the server did not answer.
    """
    stream, consumer = await asyncio.gather(stream_info(bus), consumer_info(bus, PROJECTOR))
    if stream is None or consumer is None:
        return None
    state, limit = stream["state"], int(stream["config"].get("max_bytes", -1))
    messages = int(state["messages"])
    return StreamCapacity(
        budget=limit * percent // 100 if limit > 0 else None,
        message=int(state["bytes"]) // messages if messages else _DEFAULT_MESSAGE,
        unread=int(consumer["num_pending"]) + int(consumer["num_ack_pending"]),
        last=int(state["last_seq"]),
        floor=int(consumer["ack_floor"]["stream_seq"]),
    )


class WaitBudget:
    """Limits how long each cluster may make the requests of others wait for capacity.

    A list that is larger than half of the budget must wait until the others are finished, and then
    run alone; a false claim must not stop the fleet.

    Args:
        limit: how long a cluster may block them.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, limit: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._used: dict[str, float] = {}
        self._holder = ""
        self._since = clock()

    def begin_turn(self) -> None:
        """Charge the cluster that has blocked the others since the last turn, and unblock them."""
        now = self._clock()
        passed, self._since = now - self._since, now
        used = {name: spent - passed / _RECOVERY_FACTOR for name, spent in self._used.items()}
        if self._holder:
            used[self._holder] = self._used.get(self._holder, 0.0) + passed
        self._used = {name: spent for name, spent in used.items() if spent > 0}
        self._holder = ""

    def is_left(self, cluster: str) -> bool:
        """Whether the others may still be made to wait for this cluster."""
        return self._used.get(cluster, 0.0) < self._limit.total_seconds()

    def block_others(self, cluster: str) -> None:
        """Block the others because of this cluster until the next turn."""
        self._holder = cluster


class Allotment:
    """Counts the slots and bytes of running epochs.

    Args:
        settings: how many epochs at once, and how many of one cluster.
        capacity: of the stream.

    Attributes:
        whole: the cluster of an epoch that counts with more than its share.
    """

    def __init__(self, settings: ReconcilerSettings, capacity: StreamCapacity) -> None:
        self._epochs = settings.epochs_at_once
        self._per_cluster = settings.epochs_per_cluster
        self._capacity = capacity
        self._of: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.whole = ""

    @property
    def is_full(self) -> bool:
        """Whether no further epoch may run."""
        return self._of.total() >= self._epochs

    def has_slot(self, cluster: str) -> bool:
        """Whether a cluster may run one more."""
        return self._of[cluster] < self._per_cluster

    def has_share(self, cluster: str, size: int) -> bool:
        """Whether an epoch of this size fits into the share of its cluster."""
        return not self._of[cluster] or self._bytes[cluster] + size <= self._share

    def size(self, expected: int, objects: int) -> int:
        """Estimate the size of an epoch.

        Args:
            expected: by its watcher, in bytes; 0 if it does not know.
            objects: how many objects of it the snapshot has; 0 if none.

        Returns:
            Bytes; 0 if the stream has no limit.
        """
        if self._capacity.budget is None:
            return 0
        # Without any information, as if all that may run at once were equally large.
        share = self._capacity.budget // self._epochs
        expected = expected or objects * self._capacity.message or share
        return max(expected, min(share, _MIN_SIZE), 1)

    def fits(self, size: int, *, whole: bool) -> bool:
        """Whether an epoch of this size may run beside the others; alone it may have any size.

        Args:
            size: of the epoch.
            whole: whether all of it counts, also beyond the share of its cluster.
        """
        if self._capacity.budget is None:
            return True
        if not self._of.total():
            return not self._capacity.is_exceeded
        counted = size if whole else min(size, self._share)
        # Unread bytes are mostly of running epochs: they are not counted twice.
        return max(self._bytes.total(), self._capacity.backlog) + counted <= self._capacity.budget

    def take(self, cluster: str, size: int, *, whole: bool) -> None:
        """Count an epoch that runs."""
        self._of[cluster] = min(self._of[cluster] + 1, self._per_cluster)
        if self._capacity.budget is None:
            return
        taken = self._bytes[cluster] + size
        if whole and taken > self._share:
            self.whole = cluster
        self._bytes[cluster] = (
            taken if whole else max(min(taken, self._share), self._bytes[cluster])
        )

    @property
    def _share(self) -> int:
        """The bytes that one cluster may take."""
        return (self._capacity.budget or 0) // 2
