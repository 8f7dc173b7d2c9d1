"""T22: no cluster's backlog, first list or failures hold up the changes of another one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from support.full import FULL
from support.processes.running import seconds_denied
from support.processes.services import Processes
from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"
WORK = 0.02
OBJECTS = 10_000 if FULL else 70
CHANGES = 20 if FULL else 5
APART = 2.0 if FULL else 0.1
FAILING = 100 if FULL else 20
LONGEST, P95 = (2.0, 1.0) if FULL else (30.0, 30.0)
"""Seconds from a change to its reconcile, without what the machine gave to others; see `AHEAD`."""
AHEAD = 200 if FULL else 35
"""Runs of others that may start meanwhile: two seconds of work in full, and less than half of any
backlog here. In the order of arrival it would be all of the backlog."""
PATIENCE = timedelta(seconds=400 if FULL else 60)


@dataclass
class Watched:
    """A controller with two workers that records every run with its start and end."""

    runs: list[tuple[Request, float, float]] = field(
        default_factory=list[tuple[Request, float, float]]
    )
    running: set[Request] = field(default_factory=set[Request])

    def controller(self) -> Controller:
        # One replica, two workers, and a backlog may have both.
        controller = Controller("fairness", concurrency=2, max_per_cluster=2)
        controller.watch(MAPS)
        controller.reconcile(self._work)
        return controller

    async def _work(self, request: Request, _fleet: Fleet) -> None:
        assert request not in self.running, "one key, two runs at a time"
        self.running.add(request)
        started = now()
        await asyncio.sleep(WORK)  # a reconcile takes its time
        self.running.discard(request)
        self.runs.append((request, started, now()))
        if request.name.startswith("failing"):
            raise ValueError("it always does")

    def last_end(self, cluster: str, since: float, count: int, name: str = "map") -> float | None:
        """When so many objects of a cluster had been reconciled, each after a time."""
        ends: dict[Request, float] = {}
        for request, started, ended in self.runs:
            if started >= since and request.cluster == cluster and request.name.startswith(name):
                ends.setdefault(request, ended)
        return max(ends.values()) if len(ends) >= count else None

    def first_start(self, cluster: str, name: str, since: float) -> float | None:
        first = (
            started
            for request, started, _ in self.runs
            if (request.cluster, request.name) == (cluster, name) and started >= since
        )
        return next(first, None)

    def started_between(self, cluster: str, since: float, until: float) -> int:
        return sum(r.cluster != cluster and since < at < until for r, at, _ in self.runs)


def now() -> float:
    return asyncio.get_running_loop().time()


class Fleet22:
    """The clusters a, b and c, and what is measured of them.

    Args:
        rig: of the clusters.
        start: starts a watcher or, with an empty name, the projector.

    Attributes:
        pids: of the processes that were started.
    """

    def __init__(self, rig: Rig, start: Callable[[str], object]) -> None:
        self.rig = rig
        self.watched = Watched()
        self.start = start
        self.pids: list[int] = []
        self._denied: dict[float, float] = {}
        self.rig.start_reconciler(self.watched.controller(), projector=False)

    def write(self, cluster: str, name: str, value: str) -> None:
        """Create or change an object."""
        server = self.rig.clusters[cluster]
        if server.get(MAPS, "default", name) is None:
            obj: dict[str, Any] = {"metadata": {"name": name}, "data": {"k": value}}
            server.create(MAPS, obj, "default")
        else:
            server.patch(MAPS, "default", name, {"data": {"k": value}})

    def write_many(
        self, cluster: str, value: str, count: int = OBJECTS, name: str = "map"
    ) -> float:
        """A change of each of many objects at once; answers when."""
        started = now()
        self._denied[started] = seconds_denied()
        for number in range(count):
            self.write(cluster, f"{name}{number}", value)
        return started

    async def done(self, cluster: str, since: float, count: int = OBJECTS) -> float:
        """Wait until all of them are reconciled; answers how long it took.

        Without what the machine gave to others while this thread, which reconciles, was ready.
        """
        ended = await until(lambda: self.watched.last_end(cluster, since, count))
        return ended - since - (seconds_denied() - self._denied.get(since, 0))

    async def change_singly(self, *clusters: str) -> None:
        """Single changes, some time apart: each is reconciled soon, whatever the others have."""
        waits: list[float] = []
        for number in range(CHANGES):
            for cluster in clusters:
                changed, denied = now(), seconds_denied(*self.pids)
                self.write(cluster, "single", str(changed))
                started = await self._started(cluster, changed)
                denied = seconds_denied(*self.pids) - denied
                waits.append(started - changed - denied)
                ahead = self.watched.started_between(cluster, changed, started)
                assert ahead <= AHEAD, f"{ahead} runs went before change {number} of {cluster}"
            await asyncio.sleep(APART)  # the pace of the changes
        check_waits(waits)

    async def _started(self, cluster: str, since: float) -> float:
        return await until(lambda: self.watched.first_start(cluster, "single", since))


async def until(look: Callable[[], float | None]) -> float:
    """Wait for a time; the runs of the full variant are too many to look at all the time."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while (outcome := look()) is None:  # noqa: ASYNC110 -- recorded by whoever is watched
            await asyncio.sleep(0.25 if FULL else 0.02)  # between two looks
    return outcome


def check_waits(waits: Sequence[float]) -> None:
    """19 of 20 are quick; `statistics.quantiles` would make the 95th percentile the maximum."""
    assert max(waits) <= LONGEST, waits
    assert sorted(waits)[math.ceil(0.95 * len(waits)) - 1] <= P95, waits


@pytest.fixture
async def fleet(open_rig: OpenRig, tmp_path: Path) -> AsyncGenerator[Fleet22]:
    """In full the other services have processes of their own: ten thousand changes on their way
    through one event loop would hold everybody up for seconds.
    """
    rig = await open_rig("a", "b", "c", resources=(MAPS,))
    shared = rig.shared
    urls = str(shared.nats_url), str(shared.redis_url)
    processes = Processes(tmp_path, rig.kubeconfig, *urls, [MAPS])
    async with AsyncExitStack() as stack:

        def start(cluster: str) -> None:
            if FULL:
                make = processes.watcher if cluster else processes.reconciler
                child = make(cluster or "projector")
                stack.push_async_callback(child.stop)
                opened.pids.append(child.pid)
            elif cluster:
                rig.start_watcher(cluster)
            else:
                rig.start_reconciler(name="projector")

        opened = Fleet22(rig, start)
        start("")
        yield opened


@pytest.mark.full  # tests/sdk/workqueue/test_fairness.py has it, without the services
async def test_t22_backlogs_first_lists_and_failures_hold_nobody_up(fleet: Fleet22) -> None:
    watched = fleet.watched
    fleet.start("a")
    fleet.start("b")
    for cluster in ("a", "b"):
        fleet.write(cluster, "map0", "first")
        await fleet.done(cluster, 0, 1)

    alone = await fleet.done("a", fleet.write_many("a", "alone"))

    # A backlog in one cluster, single changes in another.
    since = fleet.write_many("a", "together")
    await fleet.change_singly("b")
    together = await fleet.done("a", since)
    assert together <= (1.2 * alone if FULL else 10 * alone)

    # A third cluster joins with a first list as long; the others go on changing.
    since = fleet.write_many("c", "there before")
    fleet.start("c")
    await fleet.done("c", since, 1)
    live = asyncio.create_task(fleet.change_singly("a", "b"))
    first_list = await fleet.done("c", since)
    await live
    assert first_list <= (1.5 * alone if FULL else 10 * alone)

    # Keys that always fail.
    since = fleet.write_many("a", "bad", FAILING, "failing")
    await until(lambda: watched.last_end("a", since, FAILING, "failing"))
    await fleet.change_singly("b")
