"""Named points at which a worker of the campaign kills itself on demand.

Product code has no such points: the methods around them are wrapped here, in the worker's process.
SIGUSR1 arms a worker: it dies at the point that its file names when it next gets there.
"""

# The points are around private methods, and pyright is to know when one is gone.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fleetbus.intake.recorded_queue import RecordedRedisQueue
from fleetbus.worker import host
from fleetbus.workqueue.redis import RedisQueue

IN_RECONCILE: Final = "reconcile"
CONSUMED: Final = "consumed"
"""A batch has come from the bus, and nothing is done with it."""
_ANSWER_SECONDS: Final = 0.001
"""By then a take is on its way, and seldom answered."""

Point = Callable[["Armed"], None]


class Armed:
    """The point at which this process is to die, if any.

    Args:
        path: the file that names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._point = ""

    def listen(self) -> None:
        signal.signal(signal.SIGUSR1, self._read)

    def reach(self, point: str) -> None:
        """Die here, if armed for it."""
        if self._point == point:
            die()

    def is_at(self, point: str) -> bool:
        return self._point == point

    def _read(self, _number: int, _frame: FrameType | None) -> None:
        self._point = self._path.read_text().strip()


def die() -> None:
    """As a crash would: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def _before(armed: Armed, owner: type, method: str, point: str) -> None:
    inner: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def wrapped(*given: Any, **more: Any) -> Any:
        armed.reach(point)
        return await inner(*given, **more)

    setattr(owner, method, wrapped)


def _after(armed: Armed, owner: type, method: str, point: str) -> None:
    """Only when there was something to do: an empty take is no point."""
    inner: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def wrapped(*given: Any, **more: Any) -> Any:
        answer = await inner(*given, **more)
        if answer != [] or method != "take":
            armed.reach(point)
        return answer

    setattr(owner, method, wrapped)


def _while_taking(armed: Armed) -> None:
    inner = RedisQueue.take

    async def wrapped(self: RedisQueue, *given: Any, **more: Any) -> Any:
        if armed.is_at("take-sent"):
            asyncio.get_running_loop().call_later(_ANSWER_SECONDS, die)
        return await inner(self, *given, **more)

    RedisQueue.take = wrapped


def _on_the_bus(armed: Armed) -> None:
    """Between apply, enqueue, record and the acknowledgement (rule P9)."""
    hosted = host._Hosted
    _before(armed, hosted, "_handle", CONSUMED)
    _before(armed, RecordedRedisQueue, "add", "applied")
    _after(armed, RecordedRedisQueue, "add", "enqueued")
    _after(armed, hosted, "_handle", "handled")


def _around_the_end(armed: Armed) -> None:
    """Between a run, its outcome and its done (rule Q12)."""
    for method in ("retry", "forget", "requeue_after"):
        _before(armed, RedisQueue, method, "before-outcome")
        _after(armed, RedisQueue, method, "after-outcome")
    _before(armed, RecordedRedisQueue, "done", "before-done")
    _after(armed, RecordedRedisQueue, "done", "after-done")


def wrap(armed: Armed) -> None:
    """Put all points in."""
    _while_taking(armed)
    _after(armed, RedisQueue, "take", "taken")
    _on_the_bus(armed)
    _around_the_end(armed)
    _after(armed, RedisQueue, "reap", "reaped")


POINTS: Final = (
    *("take-sent", "taken", IN_RECONCILE, "before-outcome", "after-outcome"),
    *("before-done", "after-done", "reaped"),
    *(CONSUMED, "applied", "enqueued", "handled"),
)
"""All of them."""
