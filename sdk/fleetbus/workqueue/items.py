"""Lists the items of a queue, reads the status of one, and makes delayed ones due now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from fleetbus.workqueue.queue import BATCH, Priority, QueuePolicy, worker_of
from fleetbus.workqueue.scripts import Transitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus.reconcile import Request

STATES: Final = ("processing", "ready", "blocked", "delayed", "quarantined")
"""In the order in which they run; the words are those of `ItemStatus.state`."""
MOST: Final = BATCH
"""Most items of one state per call: the script blocks the server while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of a list; a delayed item may be listed in another state as well.

    Attributes:
        state: one of `STATES`; blocked means ready, but the breaker of its cluster is open.
        request: its request.
        failures: since the last success.
        waited: time since it became due, if it is ready or blocked.
        priority: its band, if it is ready or blocked.
        remaining: until its lease ends, it is due, or it leaves quarantine; negative afterwards.
        worker: host and process id of the worker; empty if its lease names none.
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


def is_overdue(item: Item) -> bool:
    """Whether its time to run has passed, and no worker has taken it."""
    return item.remaining is not None and item.remaining < timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """The first items of each state, and how many there are of each."""

    shown: Sequence[Item]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStatus:
    """The status of one request in its queue; None where a field does not apply.

    Attributes:
        failures: since the last success.
        waiting: how long it has been due, even while a run is in progress.
        priority: the band in which it waits.
        worker: host and process id of the worker; empty if the lease names none.
        running: time since the run in progress became due.
        lease: the rest of its lease; negative if it has expired.
        due_in: until a timer or its back-off makes it due; negative until it is taken.
        quarantine: until it leaves quarantine by itself; negative until it is taken.
        quarantines: how often it was quarantined.
        breaker: until the breaker of its cluster lets a probe through.
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
        """Read the answer of read_item.lua."""
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
    """List the items of a controller's queue.

    Args:
        redis: where the queue is.
        controller: its name.
        limit: most items of each state, up to `MOST`.

    Raises:
        QueueUnavailableError: the store did not answer.
    """
    calls = Transitions(controller, QueuePolicy())
    answer = await calls.list_items(min(limit, MOST)).send(redis)
    parts = dict(zip(STATES, answer, strict=True))
    return Items(
        shown=[_item(calls, state, row) for state, (_, rows) in parts.items() for row in rows],
        counts={state: count for state, (count, _) in parts.items()},
    )


async def run_now(redis: Redis, controller: str, request: Request | None = None) -> int:
    """Make items due now: all that wait after a failure, or the one of a request.

    Failures stay counted, and quarantined items stay in quarantine: see `Queue.release`.

    Returns:
        How many became due.

    Raises:
        QueueUnavailableError: the store did not answer.
    """
    calls, page, made_due = Transitions(controller, QueuePolicy()), "0", 0
    while True:
        following, count = await calls.run_now(request, page).send(redis)
        page, made_due = following.decode(), made_due + count
        if page == "0":
            return made_due


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
    """Read the status of a request in its queue.

    Raises:
        QueueUnavailableError: the store did not answer.
    """
    call = Transitions(request.controller, QueuePolicy()).read_item(request)
    return ItemStatus.of(await call.send(redis))
