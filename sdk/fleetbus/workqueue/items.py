"""The items of a queue by name: for whoever asks what waits and why, and wants it to run now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

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
        answer = await calls.items(min(limit, MOST)).send(redis)
    except (RedisError, OSError) as e:
        raise QueueUnavailableError(str(e)) from e
    parts = dict(zip(STATES, answer, strict=True))
    return Items(
        shown=[_item(calls, state, row) for state, (_, rows) in parts.items() for row in rows],
        counts={state: count for state, (count, _) in parts.items()},
    )


async def hasten(redis: Redis, controller: str, request: Request | None = None) -> int:
    """Make due now what waits after a failure, or one item whatever it waits for; how many.

    Their failures stay counted. What is in quarantine stays there: see `Queue.release`.

    Raises:
        QueueUnavailableError: the store is away.
    """
    calls, page, hastened = Transitions(controller, QueuePolicy()), "0", 0
    while True:
        try:
            following, count = await calls.hasten(request, page).send(redis)
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
