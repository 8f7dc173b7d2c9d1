"""Where one request stands in its controller's queue, of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import RedisError

from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Priority, QueuePolicy, worker_of
from fleetbus.workqueue.scripts import Transitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from fleetbus.reconcile import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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


def _span(fields: Sequence[Any], place: int) -> timedelta | None:
    return timedelta(microseconds=fields[place]) if fields else None


async def look(redis: Redis, request: Request) -> Standing:
    """Where a request stands; it changes nothing.

    Raises:
        QueueUnavailableError: the store is away.
    """
    call = Transitions(request.controller, QueuePolicy()).look(request)
    try:
        return Standing.of(await call.send(redis))
    except (RedisError, OSError) as e:
        raise QueueUnavailableError(str(e)) from e
