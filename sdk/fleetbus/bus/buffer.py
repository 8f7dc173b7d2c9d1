"""Messages between the bus and who handles them: in stream order, or fairly over the clusters.

The stream is one line for everybody, so a cluster that floods it stands before all others. Where
order matters only object by object, as for controllers, what has come is put in a line of its own
for each cluster: a batch of a crowd and the changes of the others are handled side by side, and of
an object that changes faster than it is looked at only the newest state is.
"""

from __future__ import annotations

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
CROWD: Final = 100
"""Of one cluster in a batch beside others: the store does one script at a time, for everybody."""
LANES: Final = 4
_ROOM: Final = 500
_FAIR_ROOM: Final = 2000
"""Messages that a process holds unacknowledged; the durable has 5,000 for all processes."""
BYTES: Final = 64 * 1024**2
RESTS: Final = 3
REST: Final = timedelta(milliseconds=200)
"""A crowd beside others rests three times as long as its batch took, this at most."""
SILENCE: Final = timedelta(seconds=10)
"""A cluster that sent nothing for so long does not count as one beside others."""
_STATES: Final = frozenset({Verb.ADDED, Verb.MODIFIED, Verb.LISTED})
_NEWS: Final = frozenset({Verb.ADDED, Verb.MODIFIED})


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the stream; `message` is None if it is refused, `problem` says why (B18)."""

    message: Message | None
    sequence: int
    subject: str
    headers: Mapping[str, str]
    problem: str = ""
    ahead: int = 0
    """The number for which it is refused, if that is too far ahead (ms)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that has come and is not acknowledged."""

    reply: str
    """Where the acknowledgement goes."""
    size: int
    """Of its body, in bytes."""
    delivery: Delivery


class Line(Protocol):
    """Where messages wait.

    Attributes:
        lanes: how many batches may be handled at a time.
    """

    lanes: int

    @property
    def room(self) -> int:
        """For how many more messages there is room; 0 or less for none."""
        ...

    @property
    def wait(self) -> float:
        """Seconds until there may be a batch although nothing comes or is done; or infinite."""
        ...

    def add(self, one: Waiting) -> Waiting | None:
        """Put in line; answers what need not be handled any more, and can be acknowledged."""
        ...

    def take(self) -> Sequence[Waiting]:
        """The next batch, which stays ours until it is `done`; empty for none now.

        Never asked while `lanes` batches are not done.
        """
        ...

    def done(self, batch: Sequence[Waiting]) -> None:
        """A batch is handled."""
        ...

    def unhandled(self) -> Sequence[Waiting]:
        """All that is not done."""
        ...


class InOrder:
    """One batch after the other, as the stream has them."""

    lanes = 1
    wait = inf

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0

    @property
    def room(self) -> int:
        """As of `Line`."""
        return _ROOM - len(self._waiting) if self._bytes < BYTES else 0

    def add(self, one: Waiting) -> None:
        """As of `Line`."""
        self._waiting.append(one)
        self._bytes += one.size

    def take(self) -> Sequence[Waiting]:
        """As of `Line`."""
        return list(islice(self._waiting, BATCH))

    def done(self, batch: Sequence[Waiting]) -> None:
        """As of `Line`."""
        for one in batch:
            self._waiting.popleft()
            self._bytes -= one.size

    def unhandled(self) -> Sequence[Waiting]:
        """As of `Line`."""
        return list(self._waiting)


@dataclass(slots=True)
class _Queue:
    """What waits of one cluster."""

    slots: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    newest: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    """The slot of each object's last message."""
    is_busy: bool = False
    served: int = 0
    """Its share so far, as in start-time fair queueing: what came late is not owed the past."""
    heard_at: float = 0.0
    began_at: float = 0.0
    """When its last batch was taken."""
    rests_until: float = 0.0


class ByCluster:
    """Each cluster's messages in their order, one batch at a time; the clusters side by side.

    Who has been served least is next. A newer state of an object takes the place of one that
    still waits, so that it waits no longer for having changed again.

    Args:
        on_superseded: called for each message that need not be handled.
        is_skippable: whether a state of an object, the first one, may go unhandled beside a newer
            one; any may unless told otherwise.
    """

    lanes = LANES

    def __init__(
        self,
        on_superseded: Callable[[], None] = lambda: None,
        *,
        is_skippable: Callable[[Event, Event], bool] = lambda _older, _newer: True,
    ) -> None:
        self._on_superseded = on_superseded
        self._is_skippable = is_skippable
        self._queues: dict[str, _Queue] = {}
        self._taken: dict[int, Waiting] = {}
        self._slot = 0
        self._held = 0
        self._bytes = 0
        self._served = 0

    @property
    def room(self) -> int:
        """As of `Line`."""
        return _FAIR_ROOM - self._held if self._bytes < BYTES else 0

    @property
    def wait(self) -> float:
        """As of `Line`."""
        now = time.monotonic()
        resting = (q.rests_until for q in self._queues.values() if q.slots and not q.is_busy)
        return max(0.0, min(resting, default=inf) - now)

    def add(self, one: Waiting) -> Waiting | None:
        """As of `Line`."""
        cluster, key = _place(one)
        queue = self._queues.setdefault(cluster, _Queue())
        queue.heard_at = time.monotonic()
        held = queue.slots.get(queue.newest.get(key, 0))
        if held is not None and (loser := self._superseded(held, one)) is not None:
            if loser is held:
                queue.slots[queue.newest[key]] = one
                self._bytes += one.size - held.size
            self._on_superseded()
            return loser
        if not queue.slots and not queue.is_busy:
            queue.served = max(queue.served, self._served)
        self._slot += 1
        queue.slots[self._slot] = one
        queue.newest[key] = self._slot
        self._held += 1
        self._bytes += one.size
        return None

    def take(self) -> Sequence[Waiting]:
        """As of `Line`."""
        now = time.monotonic()
        free = [
            queue
            for queue in self._queues.values()
            if queue.slots and not queue.is_busy and now >= queue.rests_until
        ]
        most = BATCH if len(self._queues) == 1 else CROWD
        batch: list[Waiting] = []
        for queue in sorted(free, key=lambda queue: (queue.served, len(queue.slots))):
            # A crowd goes by itself: few would have to wait until all of it is handled.
            if not batch or len(batch) + len(queue.slots) <= most:
                batch += self._serve(queue, most)
        return batch

    def done(self, batch: Sequence[Waiting]) -> None:
        """As of `Line`."""
        now = time.monotonic()
        for cluster in {_place(one)[0] for one in batch}:
            queue = self._queues[cluster]
            queue.is_busy = False
            if len(self._queues) > 1 and len(queue.slots) > CROWD and self._held < _FAIR_ROOM / 2:
                queue.rests_until = now + min(RESTS * (now - queue.began_at), REST.total_seconds())
        for one in batch:
            del self._taken[id(one)]
            self._bytes -= one.size
        self._held -= len(batch)
        self._forget_silent()

    def unhandled(self) -> Sequence[Waiting]:
        """As of `Line`."""
        waiting = [one for queue in self._queues.values() for one in queue.slots.values()]
        return [*self._taken.values(), *waiting]

    def _serve(self, queue: _Queue, most: int) -> list[Waiting]:
        slots = list(islice(queue.slots, most))
        found = [queue.slots.pop(slot) for slot in slots]
        for slot, one in zip(slots, found, strict=True):
            # A queue that never gets empty would remember every object that ever was.
            if queue.newest[key := _place(one)[1]] == slot:
                del queue.newest[key]
        self._taken |= {id(one): one for one in found}
        self._served = max(self._served, queue.served)
        queue.served += len(found)
        queue.is_busy, queue.began_at = True, time.monotonic()
        return found

    def _superseded(self, held: Waiting, new: Waiting) -> Waiting | None:
        """Which of two messages of an object the other one stands for, if it does.

        They need not come in the order of their versions: the bus delivers again (rule B5), and two
        replicas of a watcher are not equally fast.
        """
        one, other = held.delivery.message, new.delivery.message
        if not (isinstance(one, Event) and isinstance(other, Event)):
            return None
        if (one.uid, one.incarnation) != (other.uid, other.incarnation):
            return None
        first, second = one.resource_version, other.resource_version
        if first == second or not (is_comparable(first) and is_comparable(second)):
            return None
        is_in_order = version_key(first) < version_key(second)
        older, newer, loser = (one, other, held) if is_in_order else (other, one, new)
        # A deletion is never skipped, and a list does not take a change's place: it is less urgent.
        if older.verb not in _STATES or newer.verb not in _NEWS:
            return None
        return loser if self._is_skippable(older, newer) else None

    def _forget_silent(self) -> None:
        since = time.monotonic() - SILENCE.total_seconds()
        silent = [
            cluster
            for cluster, queue in self._queues.items()
            if queue.heard_at < since and not queue.slots and not queue.is_busy
        ]
        for cluster in silent:
            del self._queues[cluster]


def _place(one: Waiting) -> tuple[str, Hashable]:
    """The cluster, and what tells its objects apart; a message of no object is like no other."""
    message = one.delivery.message
    if isinstance(message, Event):
        key = (message.group, message.resource, message.namespace, message.name)
        return message.cluster, key
    return cluster_of(one.delivery.subject), one.delivery.sequence
