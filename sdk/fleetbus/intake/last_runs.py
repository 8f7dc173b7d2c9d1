"""How the last run of each request of a controller ended, for `fleetbus explain`.

It is written with the outcome, before the lease ends (rule Q12), and bounded: of the requests whose
last run was longest ago nothing is kept. It decides nothing; who loses it loses a sentence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from redis.exceptions import RedisError

from fleetbus.process.cancellation import cancellable
from fleetbus.process.error_text import describe
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import worker_of
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.controller.controller import Controller
    from fleetbus.reconcile import Request
    from fleetbus.workqueue.queue import Lease

KEPT: Final = 10_000
"""Requests of a controller; about 210 bytes each in the store, and the error's text."""
_CHUNK: Final = 300
"""Runs per script call: each has three arguments (rule P16)."""


class LastRun(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One run that is over. Times are seconds since 1970."""

    outcome: str
    """As in the metric `fleetbus_reconciles_total`."""
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


_decode: Final = msgspec.msgpack.Decoder(LastRun).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class RunEnds:
    """Tells how runs of one controller ended.

    Args:
        controller: whose; of one that watches Secrets no text of an error is kept.
    """

    def __init__(self, controller: Controller) -> None:
        self._limit = controller.timeout.total_seconds()
        self._is_quiet = controller.handles_secrets

    def describe(
        self, lease: Lease, outcome: str, error: BaseException | None, started: float
    ) -> tuple[Request, LastRun]:
        """The run that has ended now.

        Args:
            lease: its lease.
            outcome: as in the metric.
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
            error=self._text(outcome, error),
        )
        return lease.request, run

    def _text(self, outcome: str, error: BaseException | None) -> str:
        if error is None:
            return "the answer was neither None nor a Result" if outcome == "gave_up" else ""
        if isinstance(error, asyncio.CancelledError):
            return f"cut off; it may take {self._limit:g} s"
        return describe(error, is_quiet=self._is_quiet)


class LastRuns:
    """The store of them.

    Args:
        redis: where the controller's queue is.
        controller: its name.
    """

    def __init__(self, redis: Redis, controller: str) -> None:
        self._redis = redis
        self._runs = keys.queue(controller, "last-runs")
        self._names = [self._runs, keys.queue(controller, "last-run-times")]
        text = resources.files("fleetbus.intake").joinpath("last_runs.lua").read_text()
        self._save = redis.register_script(text)

    async def note(self, runs: Sequence[tuple[Request, LastRun]]) -> None:
        """Remember these, and forget the oldest beyond `KEPT`.

        Raises:
            QueueUnavailableError: to be repeated.
        """
        for at in range(0, len(runs), _CHUNK):
            arguments: list[str | int | bytes] = [KEPT]
            for request, run in runs[at : at + _CHUNK]:
                arguments += (_item(request), int(run.ended * 1e6), _encode(run))
            try:
                with cancellable():  # redis-py sends under asyncio.wait_for
                    await self._save(keys=self._names, args=arguments)
            except (RedisError, OSError) as e:
                raise QueueUnavailableError(str(e)) from e

    async def get(self, request: Request) -> LastRun | None:
        """The last run of a request; None if none is remembered.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        raw = cast("bytes | None", await self._redis.hget(self._runs, _item(request)))  # pyright: ignore[reportGeneralTypeIssues]
        return _decode(raw) if raw else None

    async def get_many(self, requests: Sequence[Request]) -> list[LastRun | None]:
        """The same of each of these; at most some hundreds, as it is one call.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        if not requests:
            return []
        raw = await cast("Any", self._redis.hmget(self._runs, [_item(one) for one in requests]))
        return [_decode(one) if one else None for one in raw]


def _item(request: Request) -> str:
    return f"{request.cluster}/{request.namespace}/{request.name}"
