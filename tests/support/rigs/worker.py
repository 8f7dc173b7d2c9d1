"""A worker on a real queue, and a reconcile function that takes notes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from prometheus_client import REGISTRY
from redis.asyncio import Redis

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import RedisStore
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.worker.worker import Patience, Worker
from fleetbus.workqueue import Heartbeat, QueuePolicy, RedisQueue, connect_blocking
from fleetbus.workqueue.heartbeat import end_process
from fleetbus.workqueue.queue import Backoff, Lease
from fleetbus_proto.keys import SnapshotKeys
from support.stores.workqueue import named

FIRST, SECOND, THIRD = named("a"), named("b"), named("c")
POLICY = QueuePolicy(
    lease=timedelta(milliseconds=1500),  # a busy machine takes half a second of it
    backoff=Backoff(timedelta(milliseconds=10), 2, timedelta(seconds=10)),
)
USUAL = Patience()
QUICK = Patience(drain=timedelta(milliseconds=50), lag=timedelta(milliseconds=20))
Handler = Callable[[Request], Awaitable[Any]]


class Notes:
    """Records the runs of a reconcile function; `answer` is what it does."""

    def __init__(self, answer: Handler | None = None) -> None:
        self.answer = answer
        self.started: list[tuple[Request, float]] = []
        self.running: set[Request] = set()
        self.most = 0
        self.finished: list[Request] = []
        self.cancelled: list[Request] = []

    async def __call__(self, request: Request, _fleet: Fleet) -> Any:
        assert request not in self.running, "one key, two runs at a time"
        self.running.add(request)
        self.most = max(self.most, len(self.running))
        self.started.append((request, time.monotonic()))
        try:
            result = await self.answer(request) if self.answer else None
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        finally:
            self.running.discard(request)
        self.finished.append(request)
        return result

    def runs(self, request: Request = FIRST) -> int:
        return sum(started == request for started, _ in self.started)


class Working:
    """A running worker."""

    def __init__(self, worker: Worker) -> None:
        self.task = asyncio.create_task(worker.run(), name="worker")
        self._is_cancelled = False

    def stop(self) -> None:
        """Cancel it once: a second time would cut the drain short.

        `task.cancelling()` would not do, it counts a timeout inside that is just over as well.
        """
        if not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()


@asynccontextmanager
async def working(
    queue: RedisQueue,
    url: str,
    function: Callable[..., Any],
    *,
    on_stuck: Callable[[Lease], None] = end_process,
    heartbeat: type[Heartbeat] = Heartbeat,
    patience: Patience = USUAL,
    watch: Mapping[str, Any] | None = None,
    record_on: Redis | None = None,
    **options: Any,
) -> AsyncGenerator[Working]:
    controller = Controller("copier", **options)
    controller.watch(**(watch or {"resource": "v1/pods"}))
    controller.reconcile(function)
    hub = ClusterInfo(name="c1", provider="test", config=None)
    clusters = Clusters([], hub=hub)
    redis = Redis.from_url(url)
    reader = SnapshotReader(redis, SnapshotKeys())
    store = RedisStore(
        controller,
        queue,
        redis=record_on or redis,
        reader=reader,
        make_heartbeat=lambda lost: heartbeat(
            connect_blocking(url, queue.policy),
            "copier",
            policy=queue.policy,
            on_lost=lost,
            on_stuck=on_stuck,
        ),
    )
    worker = Worker(controller, store, Fleet(clusters, reader), patience=patience)
    running = Working(worker)
    try:
        yield running
    finally:
        running.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await running.task
        await redis.aclose()
        await clusters.aclose()


def counted(outcome: str, cluster: str = "c1") -> float:
    labels = {"controller": "copier", "cluster": cluster, "outcome": outcome}
    return REGISTRY.get_sample_value("fleetbus_reconciles_total", labels) or 0.0


async def is_empty(queue: RedisQueue) -> bool:
    stats = await queue.stats()
    return not (stats.depth or stats.delayed or stats.processing or stats.quarantined)
