"""Named points at which a worker of the campaign kills itself on demand."""

# The points are around private methods, and pyright is to know when one is gone.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from faults.rig.armed import Armed, die
from fleetbus.intake.controller_store import RedisStore
from fleetbus.worker.reader import Reader
from fleetbus.workqueue.redis import RedisQueue

IN_RECONCILE: Final = "reconcile"
CONSUMED: Final = "consumed"
"""A batch has come from the bus, and nothing is done with it."""
_ANSWER_SECONDS: Final = 0.001
"""By then a take is on its way, and seldom answered."""


def _before(armed: Armed, owner: type, method: str, point: str) -> None:
    inner: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def wrapped(*arguments: Any, **more: Any) -> Any:
        armed.reach(point)
        return await inner(*arguments, **more)

    setattr(owner, method, wrapped)


def _after(armed: Armed, owner: type, method: str, point: str) -> None:
    """Only when there was something to do: an empty take is no point."""
    inner: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def wrapped(*arguments: Any, **more: Any) -> Any:
        answer = await inner(*arguments, **more)
        if answer != [] or method != "_read_taken":
            armed.reach(point)
        return answer

    setattr(owner, method, wrapped)


def _while_taking(armed: Armed) -> None:
    """In calls that take, or that take besides for whoever waits."""
    for method in ("_take_now", "_send_taking"):
        _while_sending(armed, method)


def _while_sending(armed: Armed, method: str) -> None:
    inner = getattr(RedisQueue, method)

    async def wrapped(self: RedisQueue, *arguments: Any, **more: Any) -> Any:
        if armed.is_at("take-sent"):
            asyncio.get_running_loop().call_later(_ANSWER_SECONDS, die)
        return await inner(self, *arguments, **more)

    setattr(RedisQueue, method, wrapped)


def _on_the_bus(armed: Armed) -> None:
    """Between apply, enqueue, record and the acknowledgement (rule P9)."""
    _before(armed, Reader, "_handle", CONSUMED)
    _before(armed, RedisStore, "enqueue", "applied")
    _after(armed, RedisStore, "enqueue", "enqueued")
    _after(armed, Reader, "_handle", "handled")


def _around_the_end(armed: Armed) -> None:
    """Between a run, its outcome and its done (rule Q12)."""
    for method in ("retry", "forget", "requeue_after"):
        _before(armed, RedisQueue, method, "before-outcome")
        _after(armed, RedisQueue, method, "after-outcome")
    inner = RedisStore._end_with

    async def wrapped(self: RedisStore, runs: Sequence[Any], send: Any) -> Any:
        if runs:
            armed.reach("before-done")
        answer = await inner(self, runs, send)
        if runs:
            armed.reach("after-done")
        return answer

    RedisStore._end_with = wrapped


def wrap(armed: Armed) -> None:
    """Put all points in."""
    _while_taking(armed)
    _after(armed, RedisQueue, "_read_taken", "taken")
    _on_the_bus(armed)
    _around_the_end(armed)
    _after(armed, RedisQueue, "reap", "reaped")


POINTS: Final = (
    *("take-sent", "taken", IN_RECONCILE, "before-outcome", "after-outcome"),
    *("before-done", "after-done", "reaped"),
    *(CONSUMED, "applied", "enqueued", "handled"),
)
"""All of them."""
