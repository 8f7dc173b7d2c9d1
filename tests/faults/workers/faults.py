"""The lists of faults of workers and of their stores: kills and transient faults.

All is done from outside, by signals and stores; at a named point a worker kills itself.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from faults.rig.scene import BaseScene
from faults.workers.fleet import WorkerFleet
from faults.workers.kill_points import CONSUMED, POINTS
from faults.workers.settings import LEASE_SECONDS, PAUSE_SECONDS, WORKERS

_POINT_PATIENCE = 3.0
"""Time that a kill waits for its point; then it comes at once."""
_ACTS_PATIENCE = 30.0
_FAULT_PAUSES = (8.0, 16.0)
_AWAY = 1.0
_HELD = 0.8
"""Shorter than a lease."""


@dataclass
class WorkerScene(BaseScene[WorkerFleet]):
    """Everything that a fault may touch, and the random generator.

    Attributes:
        locks: one kill or pause of a worker at a time.
        pauses: how many have passed.
    """

    locks: dict[str, asyncio.Lock] = field(
        default_factory=lambda: {name: asyncio.Lock() for name in WORKERS}
    )
    pauses: int = 0

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[str]:
        """One that nobody else hurts meanwhile."""
        free = [name for name, lock in self.locks.items() if not lock.locked()]
        name = self.random.choice([n for n in free if self.acts(n)] or free or list(WORKERS))
        async with self.locks[name]:
            yield name

    def acts(self, name: str) -> bool:
        """Whether this process has ended some runs."""
        path = self.fleet.folder / f"{name}.acting"
        return path.exists() and path.read_text() == str(self.fleet.workers[name].pid)

    async def wait_until_it_acts(self, name: str) -> None:
        """Who dies before it has done anything shows little; but no longer than some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ACTS_PATIENCE):
                while not self.acts(name):  # noqa: ASYNC110 -- a process tells nobody
                    await asyncio.sleep(0.02)


Act = Callable[[WorkerScene], Awaitable[None]]


@dataclass(frozen=True)
class WorkerKill:
    """When a worker is killed: at a point, or at any time after its start."""

    name: str
    weight: int
    point: str = ""
    is_at_start: bool = False


@dataclass(frozen=True)
class StoreFault:
    """One kind of damage beside; `weight` is how often it is chosen."""

    name: str
    weight: int
    act: Act


WORKER_KILLS = (
    WorkerKill("any-time", 12),
    WorkerKill("start", 3, is_at_start=True),
    *(WorkerKill(point, 2, point=point) for point in POINTS),
)


async def kill_worker(scene: WorkerScene, kill: WorkerKill, pace: float) -> None:
    """Kill one that works, and start it again."""
    begun = time.monotonic()
    async with scene.worker() as name:
        await scene.wait_until_it_acts(name)
        if kill.is_at_start:
            scene.fleet.kill(name, "before-start")
            scene.fleet.start(name)
            await scene.pause(0.1, 1.5)
        elif kill.point:
            await _wait_at_point(scene, name, kill.point)
        else:
            await scene.pause(0, 1.0)
        _kill(scene, name, kill.name)
        await scene.pause(0, 0.3)
        scene.fleet.start(name)
    await asyncio.sleep(max(0.05, pace - (time.monotonic() - begun)))


async def _wait_at_point(scene: WorkerScene, name: str, point: str) -> None:
    _arm(scene, name, point)
    await _point_reached(scene, name)
    if not scene.fleet.workers[name].is_running:
        scene.fleet.note("kill", process=name, why=f"at-{point}")


def _arm(scene: WorkerScene, name: str, point: str) -> None:
    (scene.fleet.folder / f"{name}.point").write_text(point)
    scene.fleet.signal(name, signal.SIGUSR1)


async def _point_reached(scene: WorkerScene, name: str, patience: float = _POINT_PATIENCE) -> None:
    child = scene.fleet.workers[name]
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while child.is_running:  # noqa: ASYNC110 -- a process tells nobody
                await asyncio.sleep(0.01)


def _kill(scene: WorkerScene, name: str, why: str) -> None:
    if scene.fleet.workers[name].is_running:
        scene.fleet.kill(name, why)


async def pause_workers(scene: WorkerScene) -> None:
    """One after the other is stopped for longer than its leases, until cancelled."""
    while True:
        async with scene.worker() as name:
            await _pause_worker(scene, name)
        await scene.pause(0.1, 0.8)


async def _pause_worker(scene: WorkerScene, name: str) -> None:
    await scene.wait_until_it_acts(name)
    child = scene.fleet.workers[name]
    if not child.is_running:
        await scene.pause(0.1, 0.2)
        return
    async with scene.noted("sigstop", process=name, pid=child.pid):
        scene.fleet.signal(name, signal.SIGSTOP)
        try:
            await scene.pause(*PAUSE_SECONDS)
        finally:
            scene.fleet.signal(name, signal.SIGCONT)
    scene.pauses += 1
    await scene.pause(0.2, 0.5)  # it finds out before it is killed


# --- what they stand on -----------------------------------------------------------------------


async def _kill_valkey(scene: WorkerScene) -> None:
    async with scene.noted("kill-valkey"):
        scene.fleet.valkey.kill()
        await scene.pause(0, _AWAY)
        await scene.fleet.valkey.restart()


async def _pause_valkey(scene: WorkerScene) -> None:
    async with scene.noted("sigstop-valkey"):
        scene.fleet.valkey.process.send_signal(signal.SIGSTOP)
        try:
            await scene.pause(0.3, 1.5 * LEASE_SECONDS)
        finally:
            scene.fleet.valkey.process.send_signal(signal.SIGCONT)


async def _kill_nats(scene: WorkerScene) -> None:
    async with scene.noted("kill-nats"):
        scene.fleet.nats_server.kill()
        await scene.pause(0, _AWAY)
        await scene.fleet.nats_server.restart()


async def _pause_nats(scene: WorkerScene) -> None:
    async with scene.noted("sigstop-nats"):
        scene.fleet.nats_server.process.send_signal(signal.SIGSTOP)
        try:
            await scene.pause(0.3, 3)
        finally:
            scene.fleet.nats_server.process.send_signal(signal.SIGCONT)


async def _kill_projector(scene: WorkerScene) -> None:
    async with scene.noted("kill-projector"):
        scene.fleet.kill("projector", "any-time")
        await scene.pause(0, _AWAY)
        scene.fleet.start("projector")


STORE_FAULTS: Sequence[StoreFault] = (
    StoreFault("kill-valkey", 3, _kill_valkey),
    StoreFault("sigstop-valkey", 3, _pause_valkey),
    StoreFault("kill-nats", 2, _kill_nats),
    StoreFault("sigstop-nats", 2, _pause_nats),
    StoreFault("kill-projector", 1, _kill_projector),
)


async def break_stores(scene: WorkerScene, kinds: Sequence[StoreFault]) -> None:
    """One fault after the other, with quiet between them, until cancelled.

    The one under way ends first: else a server that was killed would stay away for good.
    """
    while True:
        await scene.pause(*_FAULT_PAUSES)
        weights = [fault.weight for fault in kinds]
        fault = asyncio.ensure_future(scene.random.choices(kinds, weights)[0].act(scene))
        try:
            await asyncio.shield(fault)
        finally:
            await fault


async def finish(scene: WorkerScene, rate: float, ends: int) -> None:
    """The last changes are in doubt: once every worker dies, and once one never returns.

    What was acknowledged before it was enqueued would never be made good by a later change; nor by
    the look around of a worker that starts, where none does. With one end the dice choose which.
    """
    ways = (_lose_all, _lose_for_good)
    for lose in ways if ends == len(ways) else (scene.random.choice(ways),)[:ends]:
        for name in WORKERS:
            scene.fleet.start(name)
        await scene.fleet.load(rate)
        await _all_act(scene)
        if lose is _lose_for_good:
            await scene.pause(3, 4)
        async with _last_changes_held(scene):
            await lose(scene)


async def _all_act(scene: WorkerScene) -> None:
    for name in WORKERS:
        await scene.wait_until_it_acts(name)


@asynccontextmanager
async def _last_changes_held(scene: WorkerScene) -> AsyncGenerator[None]:
    """The load ends while the workers stand still: they have its last changes in few batches."""
    async with scene.noted("last-changes"):
        _signal_workers(scene, signal.SIGSTOP)
        try:
            await asyncio.sleep(_HELD)
            await scene.fleet.load(0)
            yield
        finally:
            _signal_workers(scene, signal.SIGCONT)


async def _lose_all(scene: WorkerScene) -> None:
    """All die before the store, which stands still, has received anything."""
    valkey = scene.fleet.valkey.process
    valkey.send_signal(signal.SIGSTOP)
    try:
        _signal_workers(scene, signal.SIGCONT)
        await asyncio.sleep(_HELD)
        for name in WORKERS:
            _kill(scene, name, "last-changes")
    finally:
        valkey.send_signal(signal.SIGCONT)


async def _lose_for_good(scene: WorkerScene) -> None:
    """Who has some of them dies before they are enqueued, and nobody starts it again."""
    fleet = scene.fleet
    fleet.gone.update(WORKERS)
    for name in scene.random.sample(WORKERS, len(WORKERS)):
        _arm(scene, name, CONSUMED)
        fleet.signal(name, signal.SIGCONT)
        await _point_reached(scene, name, 0.75 * _HELD)
        if not fleet.workers[name].is_running:
            fleet.note("kill", process=name, why="for-good")
            break
        _arm(scene, name, "")
    fleet.gone.intersection_update(n for n in WORKERS if not fleet.workers[n].is_running)


def _signal_workers(scene: WorkerScene, number: signal.Signals) -> None:
    for name in WORKERS:
        scene.fleet.signal(name, number)
