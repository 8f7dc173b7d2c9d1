"""The loop that runs the controllers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random

import structlog

from fleetbus_devfleet.apiserver import ApiError, Change, Cluster
from fleetbus_devfleet.sim.controllers import all_controllers
from fleetbus_devfleet.sim.nodes import create_nodes
from fleetbus_devfleet.sim.pace import Pace
from fleetbus_devfleet.sim.timing import Timing
from fleetbus_devfleet.sim.view import Ref, View
from fleetbus_devfleet.sim.workqueue import WorkQueue
from fleetbus_devfleet.sim.world import Item, World

log = structlog.get_logger()
TURN_SECONDS = 0.005  # how long the loop may be kept from its other work
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 30.0
HOPELESS = 4  # failures in a row


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Simulator:
    """The controllers of one cluster: one queue, one task, no polling.

    Args:
        cluster: The cluster to bring to life.
        timing: How long things take.
        seed: Seeds the jitter and the choices; None is different each time.
        nodes: Nodes to create if they are missing, `sim-node-1` and so on.
        clock: The time, aware; that of the cluster, if it has one of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timing: Timing | None = None,
        seed: int | None = None,
        nodes: int = 2,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.cluster = cluster
        self._nodes = nodes
        timing = timing or Timing()
        random = Random(seed)  # noqa: S311 - delays and addresses, no secrets
        self._queue: WorkQueue[Item] = WorkQueue()
        self._view = View()
        self._pace: Pace[Item] = Pace(timing, random, self._queue.add)
        self._world = World(cluster, self._view, self._pace, timing, random, clock)
        self._controllers = {c.name: c for c in all_controllers(self._world)}
        self._failures: dict[Item, int] = {}
        self._retries: dict[Item, asyncio.TimerHandle] = {}
        self._last_rv = 0
        self._at_rest = asyncio.Event()

    async def run(self) -> None:
        """Run the controllers until cancelled; can be run again afterwards."""
        unsubscribe = self.cluster.subscribe(self._hear)
        try:
            self._resync()
            create_nodes(self._world, self._nodes)
            while True:
                self._work_for_a_while()
                await self._pause()
        finally:
            unsubscribe()
            self._stop_timers()
            self._queue.clear()
            self._at_rest.clear()

    async def settled(self) -> None:
        """Return when there is nothing left to do but to wait for deadlines.

        Deadlines are those of the objects themselves: minReadySeconds, progressDeadlineSeconds,
        activeDeadlineSeconds, ttlSecondsAfterFinished. Writes that keep being refused are not
        waited for either. The simulator must be running.
        """
        await self._at_rest.wait()

    # hearing ------------------------------------------------------------------------------------

    def _hear(self, change: Change) -> None:
        self._at_rest.clear()
        rv = int(change.new["metadata"]["resourceVersion"])
        if rv <= self._last_rv:
            # The cluster was rolled back, of which subscribers are not told.
            self._resync()
            return
        self._last_rv = rv
        ref = self._view.apply(change)
        if ref not in self._view:
            self._forget(ref)
        for controller in self._controllers.values():
            self._enqueue(controller.name, controller.concerns(change, ref))

    def _resync(self) -> None:
        self._stop_timers()
        self._queue.clear()
        self._view.load(self.cluster)
        self._last_rv = self.cluster.resource_version
        for ref in self._view:
            obj = self._view[ref]
            change = Change("ADDED", ref.group, ref.resource, obj, None)
            for controller in self._controllers.values():
                self._enqueue(controller.name, controller.concerns(change, ref))

    def _enqueue(self, controller: str, refs: Iterable[Ref]) -> None:
        for ref in refs:
            self._queue.add(Item(controller, ref))

    def _forget(self, ref: Ref) -> None:
        for name in self._controllers:
            item = Item(name, ref)
            self._pace.forget(item)
            self._succeed(item)

    # working ------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        if not self._queue and self._pace.is_idle and not self._hopes():
            self._at_rest.set()
        await asyncio.sleep(0)  # also with a full queue, others shall have their turn
        await self._queue.wait()

    def _hopes(self) -> bool:
        """Whether a retry may still succeed; what keeps being refused is left out of account."""
        return any(self._failures[item] < HOPELESS for item in self._retries)

    def _work_for_a_while(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + TURN_SECONDS
        while self._queue and clock() < deadline:
            self._work_once(self._queue.pop())

    def _work_once(self, item: Item) -> None:
        self._at_rest.clear()
        if item.ref not in self._view:
            return
        try:
            self._controllers[item.controller].reconcile(item.ref)
        except ApiError as error:
            self._refused(item, error)
        except Exception:
            # An object that a controller cannot read must not stop all others.
            log.exception("simulated_controller_failed", cluster=self.cluster.name, **_named(item))
            self._retry_later(item)
        else:
            self._succeed(item)

    def _refused(self, item: Item, error: ApiError) -> None:
        if error.code != HTTPStatus.CONFLICT and item not in self._failures:
            why = error.message
            log.info("simulated_write_refused", cluster=self.cluster.name, why=why, **_named(item))
        self._retry_later(item)

    def _retry_later(self, item: Item) -> None:
        if item.ref not in self._view:
            return
        failures = self._failures[item] = self._failures.get(item, 0) + 1
        seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16), LAST_RETRY_SECONDS)
        self._cancel_retry(item)
        loop = asyncio.get_running_loop()
        self._retries[item] = loop.call_later(seconds, self._retry, item)

    def _retry(self, item: Item) -> None:
        self._retries.pop(item, None)
        self._queue.add(item)

    def _succeed(self, item: Item) -> None:
        self._failures.pop(item, None)
        self._cancel_retry(item)

    def _cancel_retry(self, item: Item) -> None:
        handle = self._retries.pop(item, None)
        if handle is not None:
            handle.cancel()

    def _stop_timers(self) -> None:
        self._pace.clear()
        self._failures.clear()
        for item in list(self._retries):
            self._cancel_retry(item)


def _named(item: Item) -> dict[str, str]:
    ref = item.ref
    return {
        "controller": item.controller,
        "resource": ref.resource,
        "namespace": ref.namespace,
        "name": ref.name,
    }


@asynccontextmanager
async def simulate(
    clusters: Cluster | Iterable[Cluster],
    *,
    timing: Timing | None = None,
    seed: int | None = None,
    nodes: int = 2,
) -> AsyncGenerator[tuple[Simulator, ...]]:
    """Run the controllers of one or several clusters while the block runs.

    Yields the simulators in the order of the clusters. No task and no timer is left behind.
    """
    several = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    simulators = tuple(
        Simulator(cluster, timing=timing, seed=None if seed is None else seed + i, nodes=nodes)
        for i, cluster in enumerate(several)
    )
    tasks = [
        asyncio.create_task(simulator.run(), name=f"simulate {simulator.cluster.name}")
        for simulator in simulators
    ]
    try:
        yield simulators
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
