"""Runs controllers in this process with a manual clock, for tests and replays.

Events take the same path as in production: snapshot, router, worker, fleet. Only the ends differ:
events come from a call instead of the bus, the queue is in memory (with the same contract), and
time stands still until it is advanced, so that a delay of an hour takes no time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.errors import FleetbusError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import Finished
from fleetbus.intake.fleet_follow import background_loops
from fleetbus.intake.intake import Intake
from fleetbus.intake.routing import Router
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.pauses import Pauses
from fleetbus.reconcile import Outcome, Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.testing.memory_store import MemoryStore
from fleetbus.worker.host import check_controllers
from fleetbus.worker.worker import Patience, Worker
from fleetbus.workqueue.memory import MemoryQueue
from fleetbus.workqueue.queue import BATCH, QueuePolicy
from fleetbus_proto.keys import SnapshotKeys

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus_proto.events import Event

WITHIN: Final = timedelta(seconds=10)
_ATTEMPTS: Final = 10
_TURN: Final = timedelta(seconds=0.001)
_LONGEST_TURN: Final = timedelta(seconds=0.02)
_SHOWN: Final = 5


class NotIdle(FleetbusError):
    """The controllers did not become idle; the message says what is left, and why."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One run of a reconcile function."""

    request: Request
    outcome: Outcome
    attempt: int
    """1 for a first run; one more for each failure since the last success."""
    error: BaseException | None
    """The exception that the function raised."""


class Clock:
    """A clock in seconds since 1970 that moves only when `now` is set."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@dataclass
class _Hosted:
    """One controller with its collaborators."""

    controller: Controller
    queue: MemoryQueue
    intake: Intake
    worker: Worker


@dataclass
class ControllerRunner:
    """Runs controllers on a snapshot, with a queue each and a shared clock.

    Args:
        controllers: complete ones, with different names.
        redis: holds the snapshot; nobody else may write to it.
        clusters: the fleet.
        gives_up: move requests that keep failing to `given_up` instead of raising NotIdle.
    """

    controllers: Sequence[Controller]
    redis: Redis
    clusters: Clusters
    clock: Clock = field(default_factory=Clock)
    requests: list[Reconciled] = field(default_factory=list[Reconciled])
    """All runs, in the order in which they ended."""
    gives_up: bool = False
    given_up: dict[Request, Reconciled] = field(default_factory=dict[Request, Reconciled])

    def __post_init__(self) -> None:
        check_controllers(self.controllers)
        self.keys = SnapshotKeys()
        self.writer = SnapshotWriter(self.redis, self.keys)
        self.reader = SnapshotReader(self.redis, self.keys)
        self.fleet = Fleet(self.clusters, self.reader)
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[Request, Reconciled] = {}
        self._failed_maps: set[str] = set()
        self._hosted = [self._host(controller) for controller in self.controllers]

    def _host(self, controller: Controller) -> _Hosted:
        policy = QueuePolicy().with_backoff(controller.backoff)
        queue = MemoryQueue(controller.name, policy=policy, clock=self.clock)
        store = MemoryStore(controller, queue, redis=self.redis, on_finish=self._note)
        worker = Worker(controller, store, self.fleet, patience=Patience(drain=timedelta()))
        router = Router(
            controller,
            clusters=self.clusters,
            fleet=self.fleet,
            schedule_resync=self._failed_maps.add,
        )
        intake = Intake(router, store=store, reader=self.reader)
        return _Hosted(controller, queue, intake, worker)

    # --- lifetime -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the loops, and wait until the clusters are known."""
        self._tasks = [asyncio.create_task(self.clusters.run(), name="clusters")]
        await self.clusters.known()
        for hosted in self._hosted:
            name = hosted.controller.name
            self._tasks.append(asyncio.create_task(hosted.worker.run(), name=f"work {name}"))
            self._tasks += [
                asyncio.create_task(loop, name=f"loop of {name}")
                for loop in background_loops(hosted.controller, hosted.queue, self.fleet)
            ]

    async def aclose(self) -> None:
        """Stop, and cancel what still runs."""
        for task in reversed(self._tasks):
            await cancel_and_wait(task)
        for hosted in self._hosted:
            await hosted.queue.aclose()

    # --- events in ------------------------------------------------------------------------------

    async def feed(self, events: Sequence[Event]) -> None:
        """Apply, then enqueue, as the consumer of the bus does (rule P9)."""
        for at in range(0, len(events), BATCH):
            batch = events[at : at + BATCH]
            await self.writer.apply(batch)
            for hosted in self._hosted:
                await hosted.intake.take(batch)
        if self._failed_maps:
            clusters = ", ".join(sorted(self._failed_maps))
            self._failed_maps.clear()
            raise NotIdle(
                f"a mapping function or a predicate failed for a change in {clusters};"
                " the log has the traceback"
            )

    # --- until idle -----------------------------------------------------------------------------

    async def run_until_idle(
        self, pull: Callable[[], Awaitable[bool]], *, within: timedelta = WITHIN
    ) -> None:
        """Run until only timers are left.

        Failed requests are retried up to ten times; the clock is advanced past their back-off.

        Args:
            pull: feeds new events; returns whether there were any.
            within: the limit, in real time.

        Raises:
            NotIdle: the limit was reached, or a request keeps failing.
        """
        deadline = time.monotonic() + within.total_seconds()
        pauses = Pauses(_TURN, _LONGEST_TURN)
        while True:
            self._check_alive()
            if await pull():
                pauses.reset()
            elif await self._is_busy():
                await pauses.sleep()
            elif await pull():  # events of a run that ended between the two checks
                continue
            elif not self._failing:
                return
            else:
                self._check_attempts()
                if self._failing and not self._move_to_next(float("inf")):
                    return
                pauses.reset()
            if time.monotonic() > deadline:
                raise NotIdle(f"not idle after {within.total_seconds():g} s: {await self._left()}")

    async def advance(
        self, by: timedelta, pull: Callable[[], Awaitable[bool]], *, within: timedelta = WITHIN
    ) -> None:
        """Advance the clock: each timer up to then fires in order, and its work is done.

        Raises:
            NotIdle: as in `run_until_idle`, which runs after each timer.
        """
        end = self.clock.now + by.total_seconds()
        await self.run_until_idle(pull, within=within)
        while self._move_to_next(end):
            await self.run_until_idle(pull, within=within)
        self.clock.now = max(self.clock.now, end)

    @property
    def now(self) -> datetime:
        """The time of the queues."""
        return datetime.fromtimestamp(self.clock.now, UTC)

    def _note(self, finished: Finished) -> None:
        if finished.outcome is Outcome.STOPPED:
            return
        request, attempt = finished.lease.request, finished.lease.attempt + 1
        run = Reconciled(request, finished.outcome, attempt, finished.error)
        self.requests.append(run)
        if finished.outcome is Outcome.RETRIED:
            self._failing[request] = run
        else:
            self._failing.pop(request, None)

    async def _is_busy(self) -> bool:
        for hosted in self._hosted:
            stats = await hosted.queue.stats()
            due = hosted.queue.next_due()
            # Items behind an open breaker wait for its probe, like delayed ones.
            blocked = {breaker.cluster for breaker in stats.breakers if breaker.remaining}
            is_ready = any(cluster not in blocked for cluster, _ in stats.depth)
            if is_ready or stats.processing or (due is not None and due <= self.clock.now):
                return True
        return False

    def _move_to_next(self, end: float) -> bool:
        """Advance the clock to the next timer, unless it is later than `end`."""
        dues = [hosted.queue.next_due() for hosted in self._hosted]
        due = min((due for due in dues if due is not None), default=None)
        if due is None or due > end:
            return False
        self.clock.now = max(self.clock.now, due)
        for hosted in self._hosted:
            hosted.queue.notify()
        return True

    def _check_alive(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise NotIdle(f"{task.get_name()!r} has ended")

    def _check_attempts(self) -> None:
        for run in list(self._failing.values()):
            if run.attempt < _ATTEMPTS:
                continue
            if not self.gives_up:
                raise NotIdle(
                    f"{describe_failure(run)}; that was attempt {run.attempt}"
                ) from run.error
            self.given_up[run.request] = self._failing.pop(run.request)

    async def _left(self) -> str:
        left: list[str] = []
        for hosted in self._hosted:
            name = hosted.controller.name
            left += [
                f"{name} is still running {p.request}" for p in await hosted.queue.processing()
            ]
            ready = sum((await hosted.queue.stats()).depth.values())
            if ready:
                left.append(f"{ready} requests of {name} are ready")
        left += [describe_failure(run) for run in self._failing.values()]
        last = ", ".join(str(run.request) for run in self.requests[-_SHOWN:])
        return "; ".join([*left, f"the last runs: {last or 'none'}"])


def describe_failure(run: Reconciled) -> str:
    """Describe a failed run for a message."""
    why = f"{type(run.error).__name__}: {run.error}" if run.error else "a cancellation escaped"
    return f"{run.request.controller} fails for {run.request}: {why}"
