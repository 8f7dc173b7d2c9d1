"""Stores how the last run of each request ended, for `fleetbus explain`.

It is written with the outcome, before the lease ends (rule Q12), and bounded: the requests whose
last run was longest ago are forgotten first. Nothing is decided by it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from fleetbus.process.error_text import describe
from fleetbus.reconcile import Outcome
from fleetbus.workqueue.queue import worker_of
from fleetbus.workqueue.scripts import Rows
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.controller.controller import Controller
    from fleetbus.reconcile import Request
    from fleetbus.workqueue.queue import Lease

KEPT: Final = 10_000
"""Requests per controller; each takes about 240 bytes in the store, and the error's text."""


class LastRun(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One run that is over. Times are seconds since 1970."""

    outcome: Outcome
    attempt: int
    """1 for a first run; it counts the failures since the last success."""
    queued: float
    """When the request became due, by the store's clock."""
    started: float
    """By the worker's clock; so is the next."""
    ended: float
    worker: str
    error: str = ""
    """In one line and without secrets; empty for a run that succeeded."""
    resources: tuple[str, ...] = ()
    """Resources of which the request names an object, as `Controller.own_resources`."""


_decode: Final = msgspec.msgpack.Decoder(LastRun).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def describe_run(
    controller: Controller,
    lease: Lease,
    outcome: Outcome,
    error: BaseException | None,
    started: float,
) -> tuple[Request, LastRun]:
    """The run that has ended now.

    Args:
        controller: whose; of one that watches Secrets no text of an error is kept.
        lease: its lease.
        outcome: how it ended.
        error: what the function raised.
        started: in seconds since 1970.
    """
    run = LastRun(
        outcome=outcome,
        attempt=lease.attempt + 1,
        queued=lease.enqueued_at.timestamp(),
        started=started,
        ended=time.time(),
        worker=worker_of(lease.fence),
        error=_text(controller, outcome, error),
        resources=controller.own_resources,
    )
    return lease.request, run


def _text(controller: Controller, outcome: Outcome, error: BaseException | None) -> str:
    if error is None:
        return "it returned neither None nor a Result" if outcome is Outcome.GAVE_UP else ""
    if isinstance(error, asyncio.CancelledError):
        return f"cancelled; it may take {controller.timeout.total_seconds():g} s"
    return describe(error, is_quiet=controller.handles_secrets)


class LastRuns:
    """The last runs of one controller.

    Args:
        redis: where the controller's queue is.
        controller: its name.
    """

    def __init__(self, redis: Redis, controller: str) -> None:
        self._redis = redis
        self._runs = keys.queue(controller, "last-runs")
        self._keys = (self._runs, keys.queue(controller, "last-run-times"))

    def rows(self, runs: Sequence[tuple[Request, LastRun]]) -> Rows:
        """The arguments that store these, and forget the oldest beyond `KEPT`."""
        if not runs:
            return Rows(self._keys)
        values: list[str | int | bytes] = [KEPT]
        for request, run in runs:
            values += (_item(request), int(run.ended * 1e6), _encode(run))
        return Rows(self._keys, values)

    async def get(self, request: Request) -> LastRun | None:
        """The last run of a request; None if none is remembered.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        raw = cast("bytes | None", await self._redis.hget(self._runs, _item(request)))  # pyright: ignore[reportGeneralTypeIssues]
        return _decode(raw) if raw else None

    async def get_many(self, requests: Sequence[Request]) -> list[LastRun | None]:
        """The last run of each of these; a few hundred at most, as it is one call.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        if not requests:
            return []
        raw = await cast(
            "Any", self._redis.hmget(self._runs, [_item(request) for request in requests])
        )
        return [_decode(raw_run) if raw_run else None for raw_run in raw]


def _item(request: Request) -> str:
    return f"{request.cluster}/{request.namespace}/{request.name}"
