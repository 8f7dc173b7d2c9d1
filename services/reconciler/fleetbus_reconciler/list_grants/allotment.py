"""How many epochs may run at once, and how much of the stream they may fill (rule W7).

The stream drops its oldest messages when it is full. What has not been read by then is lost, so
what running epochs will publish, and what nobody has read yet, must fit into a part of it. The
rest is for live events, for consumers slower than the projector, and for estimates that are wrong.

What a watcher says of itself may be false: no cluster is counted with more than its slots and half
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
from fleetbus.bus.durables import PROJECTOR, consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus_reconciler.settings import ReconcilerSettings

_LEAST_ROOM: Final = 1024 * 1024
"""A list of a few objects may be twice as long the next time; that is no reason to repeat it."""
_USUAL_MESSAGE: Final = 4096
"""Bytes of one listed object, as long as the stream has none to tell."""
_MAY_HOLD_UP: Final = timedelta(seconds=60)
_COMES_BACK: Final = 10
"""So many times as long as a cluster has held up the others it takes until it may do so again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRoom:
    """What the stream bears, and how far the projector has read it.

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
        """Whether already what is not read yet is more than running epochs may fill."""
        return self.budget is not None and self.backlog > self.budget

    def is_read(self, sequence: int) -> bool:
        """Whether everything up to there has been read."""
        return not self.unread or self.floor >= sequence


async def measure_room(bus: Bus, percent: int) -> StreamRoom | None:
    """Ask the server; None if there is no stream, or no consumer of ours yet.

    Raises:
        BusError: nothing is known.
    """
    stream, consumer = await asyncio.gather(stream_info(bus), consumer_info(bus, PROJECTOR))
    if stream is None or consumer is None:
        return None
    state, limit = stream["state"], int(stream["config"].get("max_bytes", -1))
    messages = int(state["messages"])
    return StreamRoom(
        budget=limit * percent // 100 if limit > 0 else None,
        message=int(state["bytes"]) // messages if messages else _USUAL_MESSAGE,
        unread=int(consumer["num_pending"]) + int(consumer["num_ack_pending"]),
        last=int(state["last_seq"]),
        floor=int(consumer["ack_floor"]["stream_seq"]),
    )


class Patience:
    """How long each cluster may still make the asks of others wait for room.

    A list that is larger than half of what all may fill must wait until the others are through,
    and then should run alone; one that is not true must not stop the fleet.

    Args:
        clock: seconds, that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: dict[str, float] = {}
        self._holder = ""
        self._since = clock()

    def begin_turn(self) -> None:
        """Charge who has held up the others since the last turn; nobody does so now."""
        now = self._clock()
        passed, self._since = now - self._since, now
        used = {name: spent - passed / _COMES_BACK for name, spent in self._used.items()}
        if self._holder:
            used[self._holder] = self._used.get(self._holder, 0.0) + passed
        self._used = {name: spent for name, spent in used.items() if spent > 0}
        self._holder = ""

    def is_left(self, cluster: str) -> bool:
        """Whether the others may be made to wait for this cluster."""
        return self._used.get(cluster, 0.0) < _MAY_HOLD_UP.total_seconds()

    def hold_up(self, cluster: str) -> None:
        """From now to the next turn others wait because of this cluster."""
        self._holder = cluster


class Allotment:
    """What has been given out, and what may still be.

    Args:
        settings: how many epochs at once, and how many of one cluster.
        room: what the stream bears.

    Attributes:
        whole: the cluster of an epoch that is counted with more than half of the bytes.
    """

    def __init__(self, settings: ReconcilerSettings, room: StreamRoom) -> None:
        self._epochs = settings.epochs_at_once
        self._per_cluster = settings.epochs_per_cluster
        self._room = room
        self._of: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.whole = ""

    @property
    def is_full(self) -> bool:
        """Whether no further epoch may run, whoever asks."""
        return self._of.total() >= self._epochs

    def has_slot(self, cluster: str) -> bool:
        """Whether a cluster may run one more."""
        return self._of[cluster] < self._per_cluster

    def has_share(self, cluster: str, size: int) -> bool:
        """Whether an epoch of this size fits into what is its cluster's own."""
        return not self._of[cluster] or self._bytes[cluster] + size <= self._part

    def size(self, told: int, known: int) -> int:
        """What an epoch is counted with.

        Args:
            told: what its watcher expects, in bytes; 0 if it knows nothing.
            known: how many objects the snapshot holds of it; 0 if none.

        Returns:
            Bytes; 0 if the stream has no limit.
        """
        if self._room.budget is None:
            return 0
        # Nobody knows: as if all that may run at once were equally large.
        share = self._room.budget // self._epochs
        expected = told or known * self._room.message or share
        return max(expected, min(share, _LEAST_ROOM), 1)

    def fits(self, size: int, *, whole: bool) -> bool:
        """Whether an epoch of this size may run beside the others; alone it may be of any size.

        Args:
            size: of the epoch.
            whole: whether all of it counts, also what is more than half of the bytes.
        """
        if self._room.budget is None:
            return True
        if not self._of.total():
            return not self._room.is_exceeded
        counted = size if whole else min(size, self._part)
        # What is not read yet is mostly of epochs that run: it is not counted twice.
        return max(self._bytes.total(), self._room.backlog) + counted <= self._room.budget

    def take(self, cluster: str, size: int, *, whole: bool) -> None:
        """One epoch runs."""
        self._of[cluster] = min(self._of[cluster] + 1, self._per_cluster)
        if self._room.budget is None:
            return
        taken = self._bytes[cluster] + size
        if whole and taken > self._part:
            self.whole = cluster
        self._bytes[cluster] = taken if whole else max(min(taken, self._part), self._bytes[cluster])

    @property
    def _part(self) -> int:
        """The bytes that are one cluster's own at most."""
        return (self._room.budget or 0) // 2
