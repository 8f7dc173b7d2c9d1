"""The loop that runs the controllers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from random import Random
from typing import Any

import structlog

from fleetbus_emulator.apiserver import ApiError, Change, Cluster
from fleetbus_emulator.controllers.pods.nodes import create_nodes
from fleetbus_emulator.controllers.runtime.clock import LoopTimers, ManualClock, Timer, Timers
from fleetbus_emulator.controllers.runtime.event_recorder import Recorder
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.stage_timers import StageTimers
from fleetbus_emulator.controllers.runtime.timing import Timing
from fleetbus_emulator.controllers.runtime.view import View
from fleetbus_emulator.controllers.runtime.workqueue import WorkQueue
from fleetbus_emulator.controllers.runtime.world import (
    LAST,
    Controller,
    Item,
    World,
    is_of_ending_namespace,
)
from fleetbus_emulator.controllers.selection import EVERYTHING, Setup, build
from fleetbus_emulator.controllers.workloads.cronjob import CronJobController

JsonObject = dict[str, Any]
log = structlog.get_logger()
TURN = 20  # objects looked at before others have their turn; a number, so that runs are repeatable
FIRST_RETRY_SECONDS = 0.05
HOPELESS = 4  # refusals in a row after which `settled` no longer waits
LAST_RETRY = 8  # refusals in a row after which only a change brings the next attempt


class Simulator:
    """The controllers of one cluster: one queue, one task, no polling.

    Time is that of the cluster's clock; with a `ManualClock` nothing takes any time but what the
    clock is moved by.

    Args:
        cluster: The cluster to bring to life.
        controllers: Which controllers it has, by name; `EVERYTHING`, `CONTROL_PLANE` or any choice.
        timing: How long things take.
        seed: Seeds the jitter and the choices; None is different each time.
        nodes: Nodes to create if they are missing, `sim-node-1` and so on; by default two, or none
            where no kubelet is simulated.
        images: Settings for pods by image: patterns such as `registry/app:broken*`, each with the
            annotations (without prefix) that its pods are treated as having.
        schedules: Whether CronJobs start Jobs by the clock; by hand only, if not.

    Raises:
        ValueError: No such controller, or a setting for an image that makes no sense.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        controllers: Collection[str] = EVERYTHING,
        timing: Timing | None = None,
        seed: int | None = None,
        nodes: int | None = None,
        images: Mapping[str, Mapping[str, str]] | None = None,
        schedules: bool = False,
    ) -> None:
        self.cluster = cluster
        self._nodes = (2 if "kubelet" in controllers else 0) if nodes is None else nodes
        timing = timing or Timing()
        random = Random(seed)  # noqa: S311 - delays and addresses, no secrets
        clock = cluster.clock
        self._clock = clock if isinstance(clock, ManualClock) else None
        self._timers: Timers = self._clock or LoopTimers()
        self._queue: WorkQueue[Item] = WorkQueue(self._rank_of, LAST + 1)
        self._view = View()
        self._stage_timers: StageTimers[Item] = StageTimers(
            timing, random, self._timers, self._wake
        )
        recorder = Recorder(cluster)
        self._world = World(
            cluster, self._view, self._stage_timers, timing, random, clock, recorder
        )
        setup = Setup(images=images or {}, schedules=schedules)
        self._controllers = {c.name: c for c in build(self._world, controllers, setup)}
        self._listeners: dict[tuple[str, str], list[Controller]] = {}
        self._failures: dict[Item, int] = {}
        self._retries: dict[Item, Timer] = {}
        self._last_rv = 0
        self._ignores = False  # only within `load`, which nothing interrupts
        self._may_work = asyncio.Event()
        self._may_work.set()
        self._begun = asyncio.Event()
        self._at_rest = asyncio.Event()

    async def run(self) -> None:
        """Run the controllers until cancelled; can be run again afterwards."""
        unsubscribe = self.cluster.subscribe(self._on_change)
        unsubscribe_roll_back = self.cluster.subscribe_roll_back(self._resync)
        leave = self._clock.join(self._queue.drained) if self._clock else None
        try:
            self._resync()
            create_nodes(self._world, self._nodes)
            self._begun.set()
            while True:
                self._work_for_a_while()
                await self._pause()
        except Exception:
            # The error itself is raised where this is awaited, which may be much later.
            log.exception("simulated_controllers_ended", cluster=self.cluster.name)
            raise
        finally:
            unsubscribe()
            unsubscribe_roll_back()
            if leave is not None:
                leave()
            self._stop_timers()
            self._queue.clear()
            self._begun.clear()
            self._at_rest.clear()

    async def settled(self) -> None:
        """Return when there is nothing left to do but to wait for deadlines.

        Deadlines are those of the objects themselves: minReadySeconds, progressDeadlineSeconds,
        activeDeadlineSeconds, ttlSecondsAfterFinished, the tolerationSeconds of a dead node's pods,
        schedules and heartbeats. Writes that keep being refused are not waited for either. A
        ManualClock is moved as far as it takes. The simulator must be running.
        """
        await self._begun.wait()
        if self._clock is not None:
            await self._queue.drained()
            while not self._at_rest.is_set() and await self._clock.advance_to_next():
                pass
        await self._at_rest.wait()

    def load(self, objects: Iterable[tuple[str, JsonObject]]) -> int:
        """Store complete objects as `Cluster.restore` does, and leave them as they are.

        Objects that exist are replaced. A controller acts on a loaded object only when it, or what
        it depends on, changes later: a captured state is not mended, owners may come after their
        dependents, and no ReplicaSet makes up for pods that come after it. Returns how many.

        Raises:
            ApiError: One lacks its name or namespace; what came before it is stored.
        """
        self._ignores = True
        try:
            return self.cluster.restore(objects, replace=True)
        finally:
            self._ignores = False

    def pause(self) -> None:
        """Let no controller act: nothing starts, becomes ready or ends until `resume`."""
        self._may_work.clear()

    def resume(self) -> None:
        """End a pause; what changed meanwhile is looked at."""
        self._may_work.set()

    def trigger(self, namespace: str, name: str) -> str | None:
        """Start a Job of a CronJob as if its time had come.

        Returns the name of the Job; None if the CronJob is suspended, or forbids a second Job
        beside one that runs.

        Raises:
            KeyError: There is no such CronJob, or no controller for it.
            ApiError: The Job was refused.
        """
        controller = self._controllers.get(CronJobController.name)
        if not isinstance(controller, CronJobController):
            raise KeyError("no controller of CronJobs is simulated")
        return controller.trigger(namespace, name)

    def _rank_of(self, item: Item) -> int:
        return self._controllers[item.controller].rank

    # changes ------------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        rv = int(change.new["metadata"]["resourceVersion"])
        if rv <= self._last_rv:
            # The cluster was rolled back, and takes up what was under way with definitions.
            self._resync()
            return
        self._last_rv = rv
        ref = self._view.apply(change)
        if change.type == "DELETED":
            self._forget(ref)
        if self._ignores:
            return
        for controller in self._listeners_of(ref):
            self._enqueue(controller, change, ref)

    def _resync(self) -> None:
        self._stop_timers()
        self._queue.clear()
        self._view.load(self.cluster)
        self._last_rv = self.cluster.resource_version
        changes = [
            (ref, Change("ADDED", ref.group, ref.resource, self._view[ref], None))
            for ref in self._view
        ]
        for controller in self._controllers.values():  # in their order, as after a single change
            for ref, change in changes:
                if not controller.watches or (ref.group, ref.resource) in controller.watches:
                    self._enqueue(controller, change, ref)

    def _listeners_of(self, ref: Ref) -> list[Controller]:
        kind = (ref.group, ref.resource)
        listeners = self._listeners.get(kind)
        if listeners is None:
            every = self._controllers.values()
            listeners = [c for c in every if not c.watches or kind in c.watches]
            self._listeners[kind] = listeners
        return listeners

    def _enqueue(self, controller: Controller, change: Change, ref: Ref) -> None:
        try:
            concerned = [*controller.requests_for(change, ref)]
        except Exception:
            # A client's write brought us here, and must not fail because we cannot read it.
            item = Item(controller.name, ref)
            log.exception("simulated_change_unreadable", cluster=self.cluster.name, **_named(item))
            return
        delay = self._world.timing.notice * (0, 1, 10)[controller.rank]
        for other in concerned:
            item = Item(controller.name, other)
            if delay:
                self._at_rest.clear()
                self._stage_timers.call_once(item, delay)
            else:
                self._wake(item)

    def _wake(self, item: Item) -> None:
        self._at_rest.clear()
        self._queue.add(item)

    def _forget(self, ref: Ref) -> None:
        for name in self._controllers:
            item = Item(name, ref)
            self._stage_timers.forget(item)
            self._queue.discard(item)
            self._succeed(item)

    # working ------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        if not self._queue and self._stage_timers.is_idle and not self._may_recover():
            self._at_rest.set()
        await asyncio.sleep(0)  # also with a full queue, others shall have their turn
        await self._queue.wait()
        await self._may_work.wait()

    def _may_recover(self) -> bool:
        """Whether a retry may still succeed; what keeps being refused is left out of account."""
        return any(self._failures[item] < HOPELESS for item in self._retries)

    def _work_for_a_while(self) -> None:
        for _ in range(TURN):
            if not self._queue:  # working on an item may take others out
                return
            self._work_once(self._queue.pop())

    def _work_once(self, item: Item) -> None:
        if item.ref not in self._view:
            return
        try:
            self._controllers[item.controller].reconcile(item.ref)
        except ApiError as error:
            self._refused(item, error)
        except Exception:
            # An object that a controller cannot read must not stop all others. Another attempt
            # would end like this one; the next change of the object brings one.
            log.exception("simulated_controller_failed", cluster=self.cluster.name, **_named(item))
        else:
            self._succeed(item)

    def _refused(self, item: Item, error: ApiError) -> None:
        if is_of_ending_namespace(error):
            return  # expected, and there is nothing to retry
        if error.code != HTTPStatus.CONFLICT and item not in self._failures:
            why = error.message
            log.info("simulated_write_refused", cluster=self.cluster.name, why=why, **_named(item))
        self._retry_later(item)

    def _retry_later(self, item: Item) -> None:
        if item.ref not in self._view:
            return
        failures = self._failures[item] = self._failures.get(item, 0) + 1
        self._cancel_retry(item)
        if failures < LAST_RETRY:
            seconds = FIRST_RETRY_SECONDS * 2.0 ** (failures - 1)
            self._retries[item] = self._timers.call_later(seconds, self._retry, item)

    def _retry(self, item: Item) -> None:
        self._retries.pop(item, None)
        self._wake(item)

    def _succeed(self, item: Item) -> None:
        self._failures.pop(item, None)
        self._cancel_retry(item)

    def _cancel_retry(self, item: Item) -> None:
        handle = self._retries.pop(item, None)
        if handle is not None:
            handle.cancel()

    def _stop_timers(self) -> None:
        self._stage_timers.clear()
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
    controllers: Collection[str] = EVERYTHING,
    timing: Timing | None = None,
    seed: int | None = None,
    nodes: int | None = None,
    images: Mapping[str, Mapping[str, str]] | None = None,
    schedules: bool = False,
) -> AsyncGenerator[tuple[Simulator, ...]]:
    """Run the controllers of one or several clusters while the block runs.

    Yields the simulators in the order of the clusters. No task and no timer is left behind. The
    arguments are those of `Simulator`; each cluster has a seed of its own from the given one.
    """
    several = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    simulators = tuple(
        Simulator(
            cluster,
            controllers=controllers,
            timing=timing,
            seed=None if seed is None else seed + number,
            nodes=nodes,
            images=images,
            schedules=schedules,
        )
        for number, cluster in enumerate(several)
    )
    tasks = [
        asyncio.create_task(simulator.run(), name=f"simulate {simulator.cluster.name}")
        for simulator in simulators
    ]
    try:
        await asyncio.sleep(0)  # one step: they are subscribed to every write from here on
        yield simulators
    finally:
        failures = await _cancel(tasks)
    for failure in failures:
        raise failure


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> list[Exception]:
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return [outcome for outcome in outcomes if isinstance(outcome, Exception)]
