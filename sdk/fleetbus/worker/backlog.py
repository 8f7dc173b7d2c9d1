"""Enqueues for one controller of a process, apart from the others (rules P8, P9, P12).

All controllers get a batch at the same time. One whose map is slow, or whose queue refuses, is late
with its part: that goes on by itself, the next batches do not wait for it, and what comes after it
in the same clusters lines up behind it. These messages stay unacknowledged, so their number has a
limit: a controller that is further behind skips events, and enqueues all that is known instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.consume import FIRST_RETRY, RETRY_PAUSE, uncancelled
from fleetbus.intake.record import Records
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus_proto.admission import cluster_of
from fleetbus_proto.events import Event

log = structlog.get_logger()

LATE: Final = 1000
"""Messages that may wait in a process for controllers that are late; each has an equal part."""
GRACE: Final = timedelta(seconds=1)
"""A controller that is late for longer skips events when there are too many."""
PATIENCE: Final = timedelta(milliseconds=50)
"""A batch waits for a controller for this long; most take a few milliseconds."""


Take = Callable[[Sequence[Delivery], Sequence[Event], Records], Coroutine[Any, Any, None]]


class Backlog:
    """The parts of batches that one controller has not enqueued yet.

    Args:
        name: of the controller.
        take: enqueues what events wake.
        skip: records that so many events go unread (rule P12).
        limit: number of messages that may be late.
    """

    def __init__(
        self, name: str, *, take: Take, skip: Callable[[int], Awaitable[None]], limit: int
    ) -> None:
        self._name = name
        self._take = take
        self._skip = skip
        self._limit = limit
        self._late: dict[int, asyncio.Task[None]] = {}
        """By sequence: a message that is delivered again meanwhile has its place already."""
        self._last: dict[str, asyncio.Task[None]] = {}
        """The last part of each cluster that is late."""
        self._began: dict[asyncio.Task[None], float] = {}
        """When each part was late, the oldest first."""
        self._log_once = LogOnce()

    async def line_up(self, part: Sequence[Delivery]) -> Sequence[Delivery]:
        """Put events of clusters that are late behind the others; returns those of other clusters.

        Raises:
            redis.exceptions.RedisError: there are too many, and it could not be recorded that they
                are skipped; all of the batch has to come again.
        """
        if not self._last:
            return part
        for delivery in part:
            if task := self._late.get(delivery.sequence):
                delivery.unfinished.append(task)
        part = [delivery for delivery in part if delivery.sequence not in self._late]
        behind = self._behind(part)
        if behind and not await self._make_room(len(behind)):
            await self._skip(len(behind))
            return [delivery for delivery in part if delivery not in behind]
        if behind := self._behind(part):
            before = {self._last[cluster] for cluster in _clusters(behind)}
            self.note_late(self.start(behind, after=before), behind)
        return [delivery for delivery in part if delivery not in behind]

    def _behind(self, part: Sequence[Delivery]) -> Sequence[Delivery]:
        return [delivery for delivery in part if cluster_of(delivery.subject) in self._last]

    async def _make_room(self, number: int) -> bool:
        """Whether so many more messages may be late: many controllers may only be busy together."""
        while self._late and len(self._late) + number > self._limit:
            oldest = next(iter(self._began))
            seconds = self._began[oldest] + GRACE.total_seconds() - time.monotonic()
            if seconds <= 0:
                return False
            await asyncio.wait({oldest}, timeout=seconds)
            await asyncio.sleep(0)  # until it is forgotten
        return True

    def start(
        self,
        part: Sequence[Delivery],
        standing: Sequence[Event] = (),
        records: Records | None = None,
        *,
        after: Iterable[asyncio.Task[None]] = (),
    ) -> asyncio.Task[None]:
        """Start to enqueue what events wake; the task ends when that is done.

        Args:
            part: events that are in the snapshot.
            standing: those that are what the snapshot had a moment ago.
            records: what was read of them already.
            after: tasks that end before it begins.
        """
        step = self._enqueue(part, standing, records or {}, after)
        return asyncio.create_task(step, name=f"enqueue {self._name}")

    async def let_go(self, task: asyncio.Task[None], part: Sequence[Delivery]) -> None:
        """Let a batch go on without the part that a task enqueues, or skip that.

        Raises:
            redis.exceptions.RedisError: as `line_up`; the task is cancelled.
        """
        try:
            has_room = await self._make_room(len(part))
        except BaseException:
            task.cancel()
            raise
        if task.done():
            return
        if has_room:
            self.note_late(task, part)
            return
        task.cancel()  # each cluster that is late would else add a batch to those that wait
        await self._skip(len(part))

    def note_late(self, task: asyncio.Task[None], part: Sequence[Delivery]) -> None:
        """Note that a task goes on after its batch."""
        clusters = _clusters(part)
        self._began[task] = time.monotonic()
        for delivery in part:
            delivery.unfinished.append(task)
            self._late[delivery.sequence] = task
        self._last |= dict.fromkeys(clusters, task)

        def forget(_: asyncio.Task[None]) -> None:
            del self._began[task]
            for delivery in part:  # a message may be in it twice
                self._late.pop(delivery.sequence, None)
            for cluster in clusters:
                if self._last.get(cluster) is task:
                    del self._last[cluster]

        task.add_done_callback(forget)

    async def _enqueue(
        self,
        part: Sequence[Delivery],
        standing: Sequence[Event],
        records: Records,
        after: Iterable[asyncio.Task[None]],
    ) -> None:
        if after:
            await asyncio.wait(after)
        pauses = Pauses(FIRST_RETRY, RETRY_PAUSE)
        while True:
            try:
                await uncancelled(self._take(part, standing, records))
            except Exception as e:  # noqa: BLE001 -- its queue may be unavailable: keep the part
                if self._log_once.should_log(str(e)):
                    log.warning("enqueue_failed", controller=self._name, error=str(e))
                await pauses.sleep()
                standing, records = (), {}
            else:
                self._log_once.reset()
                return


def _clusters(part: Iterable[Delivery]) -> set[str]:
    return {cluster_of(delivery.subject) for delivery in part}
