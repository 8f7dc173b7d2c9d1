"""The items of a queue by name: for whoever asks what waits and why, and wants it to run now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from redis.exceptions import RedisError

from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import BATCH, Priority, QueuePolicy, worker_of
from fleetbus.workqueue.scripts import Transitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus.reconcile import Request

STATES: Final = ("processing", "ready", "blocked", "delayed", "quarantined")
"""In the order in which they run; the words are those of `look.Standing`."""
MOST: Final = BATCH
"""Items of one state that can be asked for: the script holds the server meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item; one that is delayed may be in another state, too.

    Attributes:
        state: one of `STATES`; blocked is what is ready behind the breaker of its cluster.
        request: what it stands for.
        failures: since the last success.
        waited: since it became due, if it is ready or blocked.
        priority: its band, likewise.
        remaining: until the lease ends, it is due, or it is tried again; negative once it is over.
        worker: host and process id of who works on it; empty if its lease names none.
        times: how often it was put into quarantine.
    """

    state: str
    request: Request
    failures: int
    waited: timedelta | None = None
    priority: Priority | None = None
    remaining: timedelta | None = None
    worker: str = ""
    times: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What comes first of each state, and how many there are of each."""

    shown: Sequence[Item]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStatus:
    """One request in its queue; all that is None does not apply.

    Attributes:
        failures: since the last success.
        waiting: how long it has been due, also while a run of it goes on.
        priority: the band in which it waits.
        worker: host and process id of who works on it; empty if the lease names none.
        running: time since the run that goes on was due.
        lease: what is left of its lease; negative if it has expired.
        due_in: until a timer or its back-off makes it due; negative while nobody takes it.
        quarantine: until it is tried again by itself; negative as above.
        quarantines: how many owners were lost.
        breaker: until the breaker of its cluster lets one try through.
        outage: failures of its cluster in a row, while the breaker is open.
    """

    failures: int
    waiting: timedelta | None = None
    priority: Priority | None = None
    worker: str = ""
    running: timedelta | None = None
    lease: timedelta | None = None
    due_in: timedelta | None = None
    quarantine: timedelta | None = None
    quarantines: int = 0
    breaker: timedelta | None = None
    outage: int = 0

    @property
    def state(self) -> str:
        """`processing`, `quarantined`, `blocked` (by a breaker), `ready`, `delayed`, `idle`."""
        if self.running is not None:
            return "processing"
        if self.quarantine is not None:
            return "quarantined"
        if self.waiting is not None:
            return "ready" if self.breaker is None else "blocked"
        return "idle" if self.due_in is None else "delayed"

    @classmethod
    def of(cls, answer: Sequence[Any]) -> Self:
        """Read the answer of look.lua."""
        failures, dirty, processing, delayed, quarantined, breaker = answer
        return cls(
            failures=failures,
            waiting=_span(dirty, 1),
            priority=Priority(int(dirty[0])) if dirty else None,
            worker=worker_of(processing[0].decode()) if processing else "",
            running=_span(processing, 1),
            lease=_span(processing, 2),
            due_in=_span(delayed, 0),
            quarantine=_span(quarantined, 0),
            quarantines=quarantined[1] if quarantined else 0,
            breaker=_span(breaker, 0),
            outage=breaker[1] if breaker else 0,
        )


async def list_items(redis: Redis, controller: str, limit: int) -> Items:
    """The items of a controller's queue; it changes nothing.

    Args:
        redis: where the queue is.
        controller: whose.
        limit: most items of each state, up to `MOST`.

    Raises:
        QueueUnavailableError: the store is away.
    """
    calls = Transitions(controller, QueuePolicy())
    try:
        answer = await calls.list_items(min(limit, MOST)).send(redis)
    except (RedisError, OSError) as e:
        raise QueueUnavailableError(str(e)) from e
    parts = dict(zip(STATES, answer, strict=True))
    return Items(
        shown=[_item(calls, state, row) for state, (_, rows) in parts.items() for row in rows],
        counts={state: count for state, (count, _) in parts.items()},
    )


async def run_now(redis: Redis, controller: str, request: Request | None = None) -> int:
    """Make due now what waits after a failure, or one item whatever it waits for; how many.

    Their failures stay counted. What is in quarantine stays there: see `Queue.release`.

    Raises:
        QueueUnavailableError: the store is away.
    """
    calls, page, hastened = Transitions(controller, QueuePolicy()), "0", 0
    while True:
        try:
            following, count = await calls.run_now(request, page).send(redis)
        except (RedisError, OSError) as e:
            raise QueueUnavailableError(str(e)) from e
        page, hastened = following.decode(), hastened + count
        if page == "0":
            return hastened


def _item(calls: Transitions, state: str, row: Sequence[Any]) -> Item:
    name, failures, micros, more = row
    span = timedelta(microseconds=micros)
    is_due = state in {"ready", "blocked"}
    return Item(
        state=state,
        request=calls.request(name),
        failures=failures,
        waited=span if is_due else None,
        priority=Priority(more) if is_due else None,
        remaining=None if is_due else span,
        worker=worker_of(more.decode()) if state == "processing" else "",
        times=more if state == "quarantined" else 0,
    )


def _span(fields: Sequence[Any], place: int) -> timedelta | None:
    return timedelta(microseconds=fields[place]) if fields else None


async def read_item(redis: Redis, request: Request) -> ItemStatus:
    """Where a request stands; it changes nothing.

    Raises:
        QueueUnavailableError: the store is away.
    """
    call = Transitions(request.controller, QueuePolicy()).read_item(request)
    try:
        return ItemStatus.of(await call.send(redis))
    except (RedisError, OSError) as e:
        raise QueueUnavailableError(str(e)) from e
