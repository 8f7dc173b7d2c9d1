"""The words of the queue, and the contract that `RedisQueue` and `MemoryQueue` both keep."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from fleetbus.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetbus.reconcile import Request

ZERO: Final = timedelta()
LONGEST_DELAY: Final = timedelta(days=365)
"""What is longer does not fit the queue's clock."""
_TRIGGER: Final = re.compile(rb"(\d+)/(\d+)")
BATCH: Final = 500
"""Most items in one script call: it holds the server for everyone while it runs."""
NOTE_BYTES: Final = 16 * 1024
"""Longest note: it is carried with every take of its item."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Priority(IntEnum):
    """Bands of the queue, highest first. Each keeps a share, so that none starves (rule Q10)."""

    LIVE = 0
    """A change that has just happened."""
    RETRY = 1
    """What comes back: failed, delayed, or taken from a dead worker."""
    INITIAL = 2
    """First list, full enqueue."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between the attempts of a failing request: `first`, then `factor` times the last.

    Attributes:
        first: the delay after the first failure.
        factor: growth from one failure to the next; 1 for a constant delay.
        limit: the longest delay.

    Raises:
        ConfigError: a value cannot be used; the message names it.
    """

    first: timedelta = timedelta(milliseconds=5)
    factor: float = 2
    limit: timedelta = timedelta(seconds=1000)

    def __post_init__(self) -> None:
        values: dict[str, object] = {"first": self.first, "limit": self.limit}
        for name, value in values.items():
            if not isinstance(value, timedelta) or not timedelta() < value <= LONGEST_DELAY:
                raise ConfigError(
                    f"backoff: {name} must be a positive timedelta of at most a year, like"
                    f" timedelta(seconds=5), not {value!r}"
                )
        if self.first > self.limit:
            raise ConfigError(f"backoff: first={self.first} is longer than limit={self.limit}")
        if type(self.factor) not in (int, float) or not 1 <= self.factor < math.inf:
            raise ConfigError(
                f"backoff: factor must be a number of at least 1, not {self.factor!r}"
            )

    def delay(self, failures: int) -> timedelta:
        """The delay after this many failures, counted from 1."""
        seconds = self.first.total_seconds()
        bound = self.limit.total_seconds()
        for _ in range(failures - 1):
            if seconds >= bound:
                break
            seconds *= self.factor
        return timedelta(seconds=min(seconds, bound))


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The numbers of rules Q5 to Q7, Q9 and Q12.

    All processes of one controller should agree on them.
    """

    lease: timedelta = timedelta(seconds=15)
    backoff: Backoff = Backoff()
    """Of failures; a controller may have its own, see `with_backoff`."""
    quarantine: Backoff = Backoff(timedelta(seconds=60), 2, timedelta(seconds=1000))
    reclaims: int = 3
    """So many owners lost within `reclaim_window` put a key into quarantine."""
    reclaim_window: timedelta = timedelta(minutes=10)
    breaker: int = 5
    """So many failures to reach a cluster without a success between them open its breaker (Q9)."""
    breaker_pause: Backoff = Backoff(timedelta(seconds=1), 2, timedelta(seconds=4))
    """Until one item may try whether the cluster answers again; less up to a quarter. No item waits
    longer because of such failures, so that a return is noticed within 10 s, also where the last
    try hung for the 5 s of a connect."""
    note_age: timedelta = timedelta(days=1)
    """A note that no run has replaced for so long is dropped: most often its object is gone."""

    def with_backoff(self, backoff: Backoff | None) -> QueuePolicy:
        """This policy with the back-off of a controller, if it has its own."""
        return self if backoff is None else replace(self, backoff=backoff)

    @property
    def grace(self) -> timedelta:
        """Between the reaper's two looks at an expired lease (rule Q6)."""
        return self.lease / 10


@dataclass(frozen=True, slots=True)
class Add:
    """One item to add."""

    request: Request
    priority: Priority = Priority.LIVE
    trigger: bytes = b""
    """What caused it (rule P10), see `encode_trigger`; empty if mapped or unknown."""
    trace: str = ""
    """The `traceparent` of what caused it. What is none of 55 letters is not carried; of several
    adds before one run the last counts."""
    cause: str = ""
    """The cluster whose change this is, which pays for the run (rule Q9); empty for the one that
    the request names. Of several adds before one run the first counts, or that one's own."""

    @property
    def foreign_cause(self) -> str:
        """The cause, if it is another cluster than the one that the request names."""
        return "" if self.cause == self.request.cluster else self.cause


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one request until `deadline`, unless it is extended."""

    request: Request
    fence: str
    """Time of the take, request token, generation of the store. Never repeats (rule Q4)."""
    attempt: int
    """Failures since the last success: 0 for a first run."""
    deadline: float = field(compare=False)
    """In `time.monotonic()` of this process, counted from before the call: never too late."""
    enqueued_at: datetime
    """When the key became dirty, by the store's clock."""
    priority: Priority
    trigger: bytes
    """The newest trigger of this run, or empty."""
    trace: str = ""
    """The `traceparent` of the last add that had one, or empty."""
    note: bytes = b""
    """What the last run left for this one (rule Q12), or empty."""
    is_probe: bool = False
    """It tries whether its cluster answers again, alone (rule Q9)."""
    cause: str = ""
    """The cluster whose change caused it, if that is not the request's own."""

    @property
    def charged_cluster(self) -> str:
        """The cluster that pays for this run with its turns and slots (rule Q9)."""
        return self.cause or self.request.cluster


@dataclass(frozen=True, slots=True)
class Breaker:
    """A cluster that did not answer: its items wait, and none is lost (rule Q9)."""

    cluster: str
    failures: int
    """In a row."""
    opened: int
    """How often, since the last success."""
    remaining: timedelta
    """Until the next probe; zero while one is under way, or waits for an item."""
    is_probing: bool


@dataclass(frozen=True, slots=True)
class Stats:
    """How full the queue is."""

    depth: Mapping[tuple[str, Priority], int]
    """Ready items by cluster and priority; pairs without items are absent. Those of an open
    breaker are among them."""
    delayed: int
    processing: int
    quarantined: int
    oldest: timedelta | None
    """Age of the ready item that waits longest; None if nothing is ready."""
    ages: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """The same by cluster; clusters without ready items are absent."""
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    """Items in quarantine by cluster."""
    failing: int = 0
    """Items with failures since their last success."""
    breakers: Sequence[Breaker] = ()
    """Clusters of which only probes are handed out, by name."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one pass of the reaper did."""

    held: timedelta
    """Nothing is reaped for so long: the clock jumped or the store changed (rule Q6)."""
    marked: int
    recovered: int
    quarantined: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Processing:
    """A key that somebody works on."""

    request: Request
    fence: str
    remaining: timedelta
    """Of its lease; negative once it has expired."""

    @property
    def worker(self) -> str:
        """Host and process id of whoever took it, from the token; empty if it names none."""
        return worker_of(self.fence)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A key whose owners keep dying. It is tried again by itself, or when released."""

    request: Request
    remaining: timedelta
    times: int


def worker_of(fence: str) -> str:
    """Host and process id of whoever took a lease; empty if the fence names none."""
    _, _, rest = fence.partition(".")
    return rest.partition(".")[0].rpartition("_")[0]


def encode_trigger(incarnation: int, resource_version: str) -> bytes:
    """The trigger of an identity watch; of two for one key the queue keeps the newer (P10)."""
    return f"{incarnation}/{resource_version}".encode()


def decode_trigger(trigger: bytes) -> tuple[int, str] | None:
    """Incarnation number and resourceVersion of a trigger, or None if it is empty or unreadable."""
    incarnation, _, resource_version = trigger.partition(b"/")
    try:
        return int(incarnation), resource_version.decode()
    except ValueError:
        return None


def newest_trigger(old: bytes, new: bytes) -> bytes:
    """Of two triggers of one key the newer; of others the later. `state.lua` does the same."""
    if not old or not new:
        return new or old
    ranks = [_TRIGGER.fullmatch(one) for one in (old, new)]
    if ranks[0] is None or ranks[1] is None:
        return new
    first, second = ([(len(part), part) for part in rank.groups()] for rank in ranks if rank)
    return old if first > second else new


def check_trace(trace: str) -> str:
    """The trace itself, or nothing if it is none: it comes from the bus, and from anyone there."""
    return trace if _TRACE.fullmatch(trace) else ""


def check_notes(notes: Mapping[Request, bytes]) -> None:
    """Refuse a note that would make every take of its item slow.

    Raises:
        ValueError: one is longer than `NOTE_BYTES`.
    """
    for request, note in notes.items():
        if len(note) > NOTE_BYTES:
            raise ValueError(f"the note of {request} has {len(note)} bytes, of {NOTE_BYTES}")


def from_micros(micros: int) -> datetime:
    """A moment of the store's clock."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


class Queue(Protocol):
    """client-go's workqueue across processes (rule Q1).

    A key is *dirty* from Add until it is taken, and *processing* from take until done. It is ready
    while it is dirty and not processing. So a key has one owner, any number of adds while it is
    processed cause exactly one further run, and every add is followed by a run that starts later.

    All calls may be repeated after `QueueUnavailableError`.
    """

    @property
    def policy(self) -> QueuePolicy:
        """The numbers that it works by; a heartbeat and a reaper need the same."""
        ...

    async def add(self, items: Sequence[Add]) -> None:
        """Mark the requests dirty; a higher priority than before takes effect."""
        ...

    async def add_after(self, request: Request, delay: timedelta) -> None:
        """Add after a delay; of two delays the earlier end counts (rule Q8)."""
        ...

    def weigh(self, weights: Mapping[str, float]) -> None:
        """From now on a cluster has so many turns for each one of a cluster not named (Q9)."""
        ...

    async def take(
        self,
        limit: int,
        *,
        wait: timedelta = ZERO,
        token: str | None = None,
        capacity: Mapping[str, int] | None = None,
        default_capacity: int | None = None,
        probes: int | None = None,
    ) -> list[Lease]:
        """Up to `limit` ready items; waits up to `wait` for the first one.

        Args:
            limit: most items.
            wait: how long to wait for the first one.
            token: the same token gets the same items for as long as they are processed (rule Q11);
                of letters, digits, `_` and `-`.
            capacity: most items of each named cluster (rule Q9). It is read again at every attempt,
                and the end of a lease of this process causes one.
            default_capacity: the same for a cluster that `capacity` does not name; None: no limit.
            probes: most items that try whether a cluster answers again; None for any number.

        Raises:
            QueueClosedError: The queue is closed, also while waiting.
        """
        ...

    async def done(
        self, leases: Sequence[Lease], notes: Mapping[Request, bytes] | None = None
    ) -> list[Lease]:
        """End the leases; answers those that were no longer ours. Dirty keys become ready.

        In the same step a note for the next run of the item is left (rule Q12); without one, the
        last is removed. `give_back` and a lost lease leave it as it is.

        Raises:
            ValueError: A note is longer than `NOTE_BYTES`; no lease was ended.
        """
        ...

    async def give_back(self, leases: Sequence[Lease]) -> list[Lease]:
        """End the leases of runs that did not finish (shutdown): the keys are ready again.

        Answers those that were no longer ours. Neither a failure nor a reclaim is counted.
        """
        ...

    async def retry(self, lease: Lease, *, unreachable: bool = False) -> timedelta:
        """Add again after this key's back-off, which is the answer. The lease goes on until done.

        With `unreachable` the request's cluster did not answer: `QueuePolicy.breaker` such failures
        without a success between them open its breaker (rule Q9). Then its items wait, but for
        one at a time that tries again. A success closes it: a done of a key whose failures were
        forgotten, or that had none.

        Raises:
            LeaseLostError: Another owner decides about this key.
        """
        ...

    async def requeue_after(self, lease: Lease, delay: timedelta) -> None:
        """A success that wants another run: forget the failures, add after the delay.

        Raises:
            LeaseLostError: Another owner decides about this key.
        """
        ...

    async def forget(self, lease: Lease) -> None:
        """Forget the failures of this key.

        Raises:
            LeaseLostError: Another owner decides about this key.
        """
        ...

    async def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """A whole lease from now on; answers those that are lost."""
        ...

    async def reap(self) -> Reaped:
        """Recover the keys of dead owners.

        To be called by every worker about every second, and at least four times per lease.
        """
        ...

    async def stats(self) -> Stats:
        """How full the queue is now."""
        ...

    async def processing(self) -> list[Processing]:
        """What is worked on, the lease that ends first at the top; at most 500."""
        ...

    async def quarantined(self) -> list[Quarantined]:
        """What is kept back, the one tried next at the top; at most 500."""
        ...

    async def release(self, request: Request) -> bool:
        """Let a key out of quarantine; False if it is not there."""
        ...

    async def aclose(self) -> None:
        """Wake all who wait in `take` and let go of connections; the items stay."""
        ...
