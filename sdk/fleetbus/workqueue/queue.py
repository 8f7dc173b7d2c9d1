"""The contract of the queue and its types; `RedisQueue` and `MemoryQueue` implement it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from fleetbus.errors import ConfigError
from fleetbus.process.pauses import pause_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetbus.reconcile import Request

ZERO: Final = timedelta()
LONGEST_DELAY: Final = timedelta(days=365)
"""The longest delay that fits the queue's clock."""
_TRIGGER: Final = re.compile(rb"(\d+)/(\d+)")
BATCH: Final = 500
"""Most items in one script call: a script blocks the server while it runs."""
NOTE_BYTES: Final = 16 * 1024
"""Longest note: every take of its item carries it."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Priority(IntEnum):
    """Bands of the queue, highest first. Each keeps a share, so that none starves (rule Q10)."""

    LIVE = 0
    """A change that has just happened."""
    RETRY = 1
    """A request that comes back: failed, delayed, or recovered from a dead worker."""
    INITIAL = 2
    """The first list of a resource, or a full enqueue."""


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
        """The delay after this many failures, counted from 1.

        For `MemoryQueue`; in Redis `lua/retry.lua` and `lua/reap.lua` compute the same.
        """
        return pause_of(failures, self.first, self.limit, factor=self.factor)


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The numbers of rules Q5 to Q7, Q9 and Q12.

    All processes of one controller should agree on them.
    """

    lease: timedelta = timedelta(seconds=15)
    backoff: Backoff = Backoff()
    """Back-off after failures; a controller may have its own, see `with_backoff`."""
    quarantine: Backoff = Backoff(timedelta(seconds=60), 2, timedelta(seconds=1000))
    reclaims: int = 3
    """Number of owners lost within `reclaim_window` that put a request into quarantine."""
    reclaim_window: timedelta = timedelta(minutes=10)
    breaker: int = 5
    """Number of failures in a row to reach a cluster that open its breaker (rule Q9)."""
    breaker_pause: Backoff = Backoff(timedelta(seconds=1), 2, timedelta(seconds=4))
    """Until one item may probe whether the cluster answers again; up to a quarter less. No item
    waits longer because of such failures, so that a cluster that is back is noticed within 10 s,
    even if the last probe hung for the 5 s of a connect."""
    note_age: timedelta = timedelta(days=1)
    """A note that no run has replaced for this long is dropped: usually its object is gone."""

    def with_backoff(self, backoff: Backoff | None) -> QueuePolicy:
        """This policy with the back-off of a controller, if it has its own."""
        return self if backoff is None else replace(self, backoff=backoff)

    @property
    def grace(self) -> timedelta:
        """Time between marking an expired lease as suspect and recovering it (rule Q6)."""
        return self.lease / 10


@dataclass(frozen=True, slots=True)
class Add:
    """One item to add."""

    request: Request
    priority: Priority = Priority.LIVE
    trigger: bytes = b""
    """The change that caused it (rule P10), see `encode_trigger`; empty if mapped or unknown."""
    trace: str = ""
    """The `traceparent` of its cause; an invalid one is dropped. If added repeatedly before a run,
    the last one wins."""
    cause: str = ""
    """The cluster whose change this is and that is charged for the run (rule Q9); empty for the
    request's own. If added repeatedly before a run, the first one wins, unless one is by the
    request's own cluster."""

    @property
    def foreign_cause(self) -> str:
        """The cause, if it is not the request's own cluster; else empty."""
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
    """In `time.monotonic()` of this process, measured before the call: never too late."""
    enqueued_at: datetime
    """When the request became dirty, by the store's clock."""
    priority: Priority
    trigger: bytes
    """The newest trigger of this run; may be empty."""
    trace: str = ""
    """The `traceparent` of the last add that had one; may be empty."""
    note: bytes = b""
    """The note that the last run left for this one (rule Q12); may be empty."""
    is_probe: bool = False
    """Whether it alone tries if its cluster answers again (rule Q9)."""
    cause: str = ""
    """The cluster whose change caused it, if it is not the request's own; else empty."""

    @property
    def charged_cluster(self) -> str:
        """The cluster that is charged for this run: its turns and its capacity (rule Q9)."""
        return self.cause or self.request.cluster


@dataclass(frozen=True, slots=True)
class Breaker:
    """The open breaker of a cluster that does not answer: its items wait (rule Q9)."""

    cluster: str
    failures: int
    """In a row."""
    opened: int
    """Number of openings since the last success."""
    remaining: timedelta
    """Until the next probe; zero while one is under way, or waits for an item."""
    is_probing: bool


@dataclass(frozen=True, slots=True)
class Stats:
    """The size of the queue, and how long its items have waited."""

    depth: Mapping[tuple[str, Priority], int]
    """Ready items by cluster and priority, without empty pairs; includes clusters whose breaker is
    open."""
    delayed: int
    processing: int
    quarantined: int
    oldest: timedelta | None
    """Age of the oldest ready item; None without one."""
    ages: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """Age of the oldest ready item by cluster; clusters without ready items are absent."""
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    """Quarantined items by cluster."""
    failing: int = 0
    """Items with failures since their last success."""
    breakers: Sequence[Breaker] = ()
    """Open breakers, by cluster name."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of one pass of the reaper."""

    held: timedelta
    """For how long nothing is reaped: the clock jumped or the store changed (rule Q6)."""
    marked: int
    recovered: int
    quarantined: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Processing:
    """A request that a worker is processing."""

    request: Request
    fence: str
    remaining: timedelta
    """The rest of its lease; negative once it has expired."""

    @property
    def worker(self) -> str:
        """Host and process id of the worker; empty if the fence names none."""
        return worker_of(self.fence)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A request whose owners keep dying. It is tried again by itself, or when released."""

    request: Request
    remaining: timedelta
    times: int


def worker_of(fence: str) -> str:
    """Host and process id of the worker that took a lease; empty if the fence names none."""
    _, _, suffix = fence.partition(".")
    return suffix.partition(".")[0].rpartition("_")[0]


def encode_trigger(incarnation: int, resource_version: str) -> bytes:
    """Encode the trigger of a watch; of two for one request the queue keeps the newer (P10)."""
    return f"{incarnation}/{resource_version}".encode()


def decode_trigger(trigger: bytes) -> tuple[int, str] | None:
    """Decode a trigger to incarnation number and resourceVersion; None if empty or unreadable."""
    incarnation, _, resource_version = trigger.partition(b"/")
    try:
        return int(incarnation), resource_version.decode()
    except ValueError:
        return None


def newest_trigger(old: bytes, new: bytes) -> bytes:
    """Return the newer trigger; the later one if they do not compare. As in `state.lua`."""
    if not old or not new:
        return new or old
    ranks = [_TRIGGER.fullmatch(trigger) for trigger in (old, new)]
    if ranks[0] is None or ranks[1] is None:
        return new
    first, second = ([(len(group), group) for group in rank.groups()] for rank in ranks if rank)
    return old if first > second else new


def check_trace(trace: str) -> str:
    """Return a valid `traceparent`, else nothing: it comes from the bus, so from anybody."""
    return trace if _TRACE.fullmatch(trace) else ""


def check_notes(notes: Mapping[Request, bytes]) -> None:
    """Refuse notes that would slow down every take of their items.

    Raises:
        ValueError: one is longer than `NOTE_BYTES`.
    """
    for request, note in notes.items():
        if len(note) > NOTE_BYTES:
            raise ValueError(
                f"the note of {request} has {len(note)} bytes, the limit is {NOTE_BYTES}"
            )


def from_micros(micros: int) -> datetime:
    """Convert a time of the store's clock."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


class Room(Protocol):
    """The leases that a worker has room for; see `Queue.take`. It is read at every attempt."""

    @property
    def vacant(self) -> int:
        """Most items."""
        ...

    @property
    def capacity(self) -> Mapping[str, int]:
        """Most items of each named cluster."""
        ...

    @property
    def default_capacity(self) -> int:
        """The same for a cluster that is not named."""
        ...

    @property
    def probes(self) -> int:
        """Most items that probe whether a cluster answers again."""
        ...


class Queue(Protocol):
    """client-go's workqueue across processes (rule Q1).

    A request is *dirty* from add until take, and *processing* from take until done. It is *ready*
    while it is dirty and not processing. So a request has one owner, any number of adds while it is
    processed cause exactly one further run, and every add is followed by a run that starts later.

    Every call may be repeated after `QueueUnavailableError`.
    """

    @property
    def policy(self) -> QueuePolicy:
        """Its policy; a heartbeat and a reaper need the same."""
        ...

    async def add(self, items: Sequence[Add]) -> None:
        """Mark requests dirty; a higher priority than before takes effect."""
        ...

    async def add_after(self, request: Request, delay: timedelta) -> None:
        """Add after a delay; of two delays the earlier end counts (rule Q8)."""
        ...

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set how many turns a cluster has for each one of a cluster that is not named (Q9)."""
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
        """Lease up to `limit` ready items; waits up to `wait` for the first one.

        Args:
            limit: most items.
            wait: how long to wait for the first one.
            token: the same token gets the same items for as long as they are processed (rule Q11);
                of letters, digits, `_` and `-`.
            capacity: most items of each named cluster (rule Q9). It is read again at every attempt,
                and the end of a lease of this process causes one.
            default_capacity: the same for a cluster that `capacity` does not name; None: no limit.
            probes: most items that probe whether a cluster answers again; None: no limit.

        Raises:
            QueueClosedError: The queue is closed, also while waiting.
        """
        ...

    async def done(
        self, leases: Sequence[Lease], notes: Mapping[Request, bytes] | None = None
    ) -> list[Lease]:
        """End leases; requests that are dirty again become ready.

        The same step stores the note for the next run of each item, or removes the last one
        (rule Q12). `give_back` and a lost lease leave it unchanged.

        Returns:
            The leases that were no longer ours.

        Raises:
            ValueError: A note is longer than `NOTE_BYTES`; no lease was ended.
        """
        ...

    async def give_back(self, leases: Sequence[Lease]) -> list[Lease]:
        """End the leases of runs that did not finish, as at shutdown: the requests become ready.

        Counts neither a failure nor a reclaim.

        Returns:
            The leases that were no longer ours.
        """
        ...

    async def retry(self, lease: Lease, *, unreachable: bool = False) -> timedelta:
        """Count a failure and add again after the request's back-off; the lease lasts until `done`.

        With `unreachable` the request's cluster did not answer: `QueuePolicy.breaker` such failures
        without a success between them open its breaker (rule Q9). Then its items wait, except for
        one probe at a time. A success closes it: the `done` of a request without failures.

        Returns:
            The back-off.

        Raises:
            LeaseLostError: another owner decides about this request.
        """
        ...

    async def requeue_after(self, lease: Lease, delay: timedelta) -> None:
        """Forget the failures and add after a delay: a success that wants another run.

        Raises:
            LeaseLostError: another owner decides about this request.
        """
        ...

    async def forget(self, lease: Lease) -> None:
        """Forget the failures of this request.

        Raises:
            LeaseLostError: another owner decides about this request.
        """
        ...

    async def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """Extend leases to a whole lease from now on; returns those that are lost."""
        ...

    async def reap(self) -> Reaped:
        """Recover the requests of dead owners.

        Every worker calls it about every second, and at least four times per lease.
        """
        ...

    async def stats(self) -> Stats:
        """Count what is in the queue now."""
        ...

    async def processing(self) -> list[Processing]:
        """List what is being processed, the lease that ends first at the top; at most 500."""
        ...

    async def quarantined(self) -> list[Quarantined]:
        """List what is in quarantine, the one tried next at the top; at most 500."""
        ...

    async def release(self, request: Request) -> bool:
        """Release a request from quarantine; False if it is not there."""
        ...

    async def aclose(self) -> None:
        """Wake all who wait in `take` and release connections; the items stay."""
        ...
