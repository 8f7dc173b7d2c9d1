"""Buffers between the bus and a handler: in stream order, or fair across clusters.

The stream is one queue for everybody, so a cluster that floods it delays all others. Where order
matters only per object, as for controllers, received messages wait in one queue per cluster: a
batch of a burst and the changes of other clusters are handled side by side, and of an object that
changes faster than it is handled only the newest state is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from math import inf
from typing import Final, Protocol

from fleetbus_proto.admission import cluster_of
from fleetbus_proto.events import Event, Message
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_comparable, version_key

BATCH: Final = 200
SHARED: Final = 100
"""Messages of several clusters in a batch."""
BURST: Final = 25
"""Messages of one cluster in a batch while others are active. Store and process do one thing at a
time, so a change of the others waits for such a batch at several places on its way."""
CONCURRENCY: Final = 4
_CAPACITY: Final = 500
_FAIR_CAPACITY: Final = 2000
"""Messages that a process holds unacknowledged; a durable allows 5,000 for all processes."""
BYTES: Final = 64 * 1024**2
COOLDOWN_FACTOR: Final = 3
MAX_COOLDOWN: Final = timedelta(milliseconds=200)
"""While others are active, a burst pauses for three times as long as its batch took, up to this."""
IDLE_AFTER: Final = timedelta(seconds=10)
"""After this long without a message a cluster no longer counts as active."""
_STATES: Final = frozenset({Verb.ADDED, Verb.MODIFIED, Verb.LISTED})
_CHANGES: Final = frozenset({Verb.ADDED, Verb.MODIFIED})


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the stream; `message` is None if it is rejected, `problem` says why (B18)."""

    message: Message | None
    sequence: int
    subject: str
    headers: Mapping[str, str]
    problem: str = ""
    ahead: int = 0
    """The number (ms) for which it is rejected, if that is too far ahead."""
    unfinished: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """Parts of its handling that go on after the handler has returned: it is acknowledged after
    them, and does not hold up the messages after it."""


@dataclass(frozen=True, slots=True)
class Buffered:
    """A received message that is not acknowledged yet."""

    reply: str
    """Where the acknowledgement goes."""
    size: int
    """Size of its body, in bytes."""
    delivery: Delivery


class Buffer(Protocol):
    """Holds received messages until they are handled.

    Attributes:
        concurrency: how many batches may be handled at a time.
    """

    concurrency: int

    @property
    def capacity(self) -> int:
        """Number of further messages that fit; 0 or less if it is full."""
        ...

    @property
    def wait(self) -> float:
        """Seconds until `take` may return a batch without any `add` or `done`; or infinite."""
        ...

    def add(self, buffered: Buffered) -> Buffered | None:
        """Add a message; return one that need not be handled any more and can be acknowledged."""
        ...

    def take(self) -> Sequence[Buffered]:
        """Return the next batch, which stays here until it is `done`; empty if there is none now.

        Not to be called while `concurrency` batches are not done.
        """
        ...

    def done(self, batch: Sequence[Buffered], unfinished: Sequence[Buffered] = ()) -> None:
        """Let messages after this batch be taken, and remove it but for the unfinished ones."""
        ...

    def finish(self, unfinished: Sequence[Buffered]) -> None:
        """Remove messages that were unfinished when their batch was done."""
        ...

    def unhandled(self) -> Sequence[Buffered]:
        """All messages that are not done."""
        ...


class FifoBuffer:
    """One batch after the other, in stream order."""

    concurrency = 1

    def __init__(self) -> None:
        self._waiting: deque[Buffered] = deque()
        self._bytes = 0

    @property
    def wait(self) -> float:
        """See `Buffer`."""
        return 0.0 if self._waiting else inf

    @property
    def capacity(self) -> int:
        """See `Buffer`."""
        return _CAPACITY - len(self._waiting) if self._bytes < BYTES else 0

    def add(self, buffered: Buffered) -> None:
        """See `Buffer`."""
        self._waiting.append(buffered)
        self._bytes += buffered.size

    def take(self) -> Sequence[Buffered]:
        """See `Buffer`."""
        return list(islice(self._waiting, BATCH))

    def done(self, batch: Sequence[Buffered], unfinished: Sequence[Buffered] = ()) -> None:
        """See `Buffer`; what is unfinished is not kept here."""
        del unfinished
        for buffered in batch:
            self._waiting.popleft()
            self._bytes -= buffered.size

    def finish(self, unfinished: Sequence[Buffered]) -> None:
        """See `Buffer`."""

    def unhandled(self) -> Sequence[Buffered]:
        """See `Buffer`."""
        return list(self._waiting)


@dataclass(slots=True)
class _Queue:
    """The waiting messages of one cluster."""

    slots: dict[int, Buffered] = field(default_factory=dict[int, Buffered])
    newest: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    """The slot of each object's last message."""
    is_busy: bool = False
    served: int = 0
    """Messages taken, as in start-time fair queueing: a cluster that starts late gets no extra."""
    received_at: float = 0.0
    taken_at: float = 0.0
    """When its last batch was taken."""
    cooldown_until: float = 0.0


class FairBuffer:
    """Each cluster's messages in order, one batch at a time; the clusters side by side.

    The cluster that has been served least is next. A newer state of an object takes the place of
    one that still waits, so a further change does not make the object wait longer. What comes again
    while it is unfinished is dropped: it is acknowledged with the first delivery, and would take
    the room of others.

    Args:
        on_superseded: called for each message that need not be handled.
        is_skippable: whether the first event may be skipped in favour of the second, newer one of
            the same object; by default always.
        concurrency: how many batches may be handled at a time.
    """

    def __init__(
        self,
        on_superseded: Callable[[Delivery], None] = lambda _: None,
        *,
        is_skippable: Callable[[Event, Event], bool] = lambda _older, _newer: True,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self.concurrency = concurrency
        self._on_superseded = on_superseded
        self._is_skippable = is_skippable
        self._queues: dict[str, _Queue] = {}
        self._taken: dict[int, Buffered] = {}
        self._unfinished: set[int] = set()
        """The sequences of messages whose batch is done without them."""
        self._slot = 0
        self._held = 0
        self._bytes = 0
        self._served = 0

    @property
    def capacity(self) -> int:
        """See `Buffer`."""
        return _FAIR_CAPACITY - self._held if self._bytes < BYTES else 0

    @property
    def wait(self) -> float:
        """See `Buffer`."""
        now = time.monotonic()
        resting = (q.cooldown_until for q in self._queues.values() if q.slots and not q.is_busy)
        return max(0.0, min(resting, default=inf) - now)

    def add(self, buffered: Buffered) -> Buffered | None:
        """See `Buffer`."""
        if buffered.delivery.sequence in self._unfinished:
            return None
        cluster, key = _place(buffered)
        queue = self._queues.setdefault(cluster, _Queue())
        queue.received_at = time.monotonic()
        queued = queue.slots.get(queue.newest.get(key, 0))
        if queued is not None and (loser := self._superseded(queued, buffered)) is not None:
            if loser is queued:
                queue.slots[queue.newest[key]] = buffered
                self._bytes += buffered.size - queued.size
            self._on_superseded(loser.delivery)
            return loser
        if not queue.slots and not queue.is_busy:
            queue.served = max(queue.served, self._served)
        self._slot += 1
        queue.slots[self._slot] = buffered
        queue.newest[key] = self._slot
        self._held += 1
        self._bytes += buffered.size
        return None

    def take(self) -> Sequence[Buffered]:
        """See `Buffer`."""
        now = time.monotonic()
        free = [
            queue
            for queue in self._queues.values()
            if queue.slots and not queue.is_busy and now >= queue.cooldown_until
        ]
        burst = self._burst
        batch: list[Buffered] = []
        for queue in sorted(free, key=lambda queue: (queue.served, len(queue.slots))):
            # A burst goes by itself: a few messages would have to wait until all of it is handled.
            if len(queue.slots) >= burst:
                if not batch:
                    return self._serve(queue, burst)
            elif not batch or len(batch) + len(queue.slots) <= SHARED:
                batch += self._serve(queue, burst)
        return batch

    def done(self, batch: Sequence[Buffered], unfinished: Sequence[Buffered] = ()) -> None:
        """See `Buffer`."""
        now = time.monotonic()
        for cluster in {_place(buffered)[0] for buffered in batch}:
            queue = self._queues[cluster]
            queue.is_busy = False
            if (
                len(self._queues) > 1
                and len(queue.slots) > BURST
                and self._held < _FAIR_CAPACITY / 2
            ):
                queue.cooldown_until = now + min(
                    COOLDOWN_FACTOR * (now - queue.taken_at), MAX_COOLDOWN.total_seconds()
                )
        self._unfinished |= {buffered.delivery.sequence for buffered in unfinished}
        self._remove([b for b in batch if b not in unfinished] if unfinished else batch)
        self._forget_idle()

    def finish(self, unfinished: Sequence[Buffered]) -> None:
        """See `Buffer`."""
        self._unfinished -= {buffered.delivery.sequence for buffered in unfinished}
        self._remove(unfinished)

    def unhandled(self) -> Sequence[Buffered]:
        """See `Buffer`."""
        waiting = [buffered for queue in self._queues.values() for buffered in queue.slots.values()]
        return [*self._taken.values(), *waiting]

    @property
    def _burst(self) -> int:
        """Number of messages of one cluster that a batch may have at present."""
        if len(self._queues) == 1:
            return BATCH
        # What does not fit waits in the stream, where nobody can overtake it.
        return BURST if self.capacity > 0 else SHARED

    def _remove(self, messages: Sequence[Buffered]) -> None:
        for buffered in messages:
            del self._taken[id(buffered)]
            self._bytes -= buffered.size
        self._held -= len(messages)

    def _serve(self, queue: _Queue, most: int) -> list[Buffered]:
        slots = list(islice(queue.slots, most))
        messages = [queue.slots.pop(slot) for slot in slots]
        for slot, buffered in zip(slots, messages, strict=True):
            # Otherwise a queue that never empties would remember every object it has ever seen.
            if queue.newest[key := _place(buffered)[1]] == slot:
                del queue.newest[key]
        self._taken |= {id(buffered): buffered for buffered in messages}
        self._served = max(self._served, queue.served)
        queue.served += len(messages)
        queue.is_busy, queue.taken_at = True, time.monotonic()
        return messages

    def _superseded(self, queued: Buffered, new: Buffered) -> Buffered | None:
        """The one of two messages of an object that the other makes superfluous, if any.

        They need not arrive in the order of their versions: the bus redelivers (rule B5), and two
        replicas of a watcher are not equally fast.
        """
        current, other = queued.delivery.message, new.delivery.message
        if not (isinstance(current, Event) and isinstance(other, Event)):
            return None
        if (current.uid, current.incarnation) != (other.uid, other.incarnation):
            return None
        first, second = current.resource_version, other.resource_version
        if first == second or not (is_comparable(first) and is_comparable(second)):
            return None
        is_in_order = version_key(first) < version_key(second)
        older, newer, loser = (current, other, queued) if is_in_order else (other, current, new)
        # A deletion is never skipped, and a list does not replace a change, which is more urgent.
        if older.verb not in _STATES or newer.verb not in _CHANGES:
            return None
        return loser if self._is_skippable(older, newer) else None

    def _forget_idle(self) -> None:
        since = time.monotonic() - IDLE_AFTER.total_seconds()
        silent = [
            cluster
            for cluster, queue in self._queues.items()
            if queue.received_at < since and not queue.slots and not queue.is_busy
        ]
        for cluster in silent:
            del self._queues[cluster]


def _place(buffered: Buffered) -> tuple[str, Hashable]:
    """The cluster and the object of a message; a message of no object is unique."""
    message = buffered.delivery.message
    if isinstance(message, Event):
        key = (message.group, message.resource, message.namespace, message.name)
        return message.cluster, key
    return cluster_of(buffered.delivery.subject), buffered.delivery.sequence
