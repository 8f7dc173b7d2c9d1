"""One seed of the campaign of distributors, phase by phase.

`points`: they, or the agents of targets, die at each point between two writes. `stops`: they stand
still there until another has taken over, and then go on. `storm`: they die at
any time, while targets, agents, hub and the names of the clusters are broken. `plans`: in peace,
`fleetbus plan` and then what it announced. `steps`: what needs a certain order of events. After
each phase everything is mended, and what there is is written down once the fleet is quiet.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from faults.distributors import plans
from faults.distributors.agent_faults import AgentFaults
from faults.distributors.faults import Faults
from faults.distributors.history import read_history
from faults.distributors.kill_points import AFTER, BEFORE, DISTRIBUTOR_POINTS, POINTS
from faults.distributors.processes import Processes
from faults.distributors.settings import DIRECT, DISTRIBUTORS, POLICY, SETTLE_SECONDS, TARGETS
from faults.distributors.stage import Stage
from faults.distributors.state import hub_client, read_state
from faults.distributors.state_checks import check_state
from faults.distributors.steps import STEPS
from faults.distributors.users import PLAIN, Users
from faults.distributors.world import World, running_world
from faults.rig.armed import STOP
from faults.rig.records import Violation
from faults.watchers.campaign import beside
from fleetbus.bus.connection import connected
from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus_emulator.apiserver import ApiError

_CALM_SECONDS: Final = 1.5
"""So long nobody writes anything once a fleet is quiet."""
_MUTATED_SECONDS: Final = 20
_POLL_SECONDS: Final = 0.5
_POINT_SECONDS: Final = 6
_ACTS_PATIENCE: Final = 4.0
_PROVOKE_SECONDS: Final = 1.5
_STANDS: Final = (1.2 * POLICY.lease.total_seconds(), 2 * POLICY.lease.total_seconds())
_ROUNDS: Final = 3
_MISSED_SECONDS: Final = 15
_NUMBERED: Final = 8
"""Up to this one the writes after an action are counted, and died at."""
_PLANNED: Final = 4


@dataclass(frozen=True)
class DistributorPlan:
    """The plan of one seed.

    Attributes:
        seed: of every choice.
        kills: how many distributors are killed at any time.
        points: at how many of the points between two writes; None for each of them.
        stops: at how many of the points of distributors one stands still; None for each of them.
        pace: seconds between two kills, on average.
        rounds: how often a plan is compared with the writes that follow.
        steps: which of the directed steps; None for each of them.
        mutation: a rule of the product that is disabled, for checking the checker.
    """

    seed: int
    kills: int = 100
    points: int | None = None
    stops: int | None = None
    pace: float = 1.2
    rounds: int = 3
    steps: tuple[str, ...] | None = None
    mutation: str = ""


async def run_distributors(plan: DistributorPlan, folder: Path) -> AsyncGenerator[Path]:
    """Run a seed; yields the folder of each phase when it is recorded."""
    async with (
        running_world(folder, plan.mutation) as world,
        connected(str(world.rig.shared.nats_url), name="campaign") as bus,
        hub_client(world.rig) as client,
    ):
        users = Users(world, bus, Random(f"users/{plan.seed}"))
        campaign = _Campaign(plan, world, users, client)
        users.create_all()
        await world.processes.start()
        for name, act in campaign.phases().items():
            yield await campaign.phase(folder / name, act)


class _Campaign:
    def __init__(
        self, plan: DistributorPlan, world: World, users: Users, client: KubeClient
    ) -> None:
        self._plan = plan
        self._world = world
        self._users = users
        self._client = client
        self._random = Random(f"distributors/{plan.seed}")
        self._faults = Faults(world, Random(f"faults/{plan.seed}"))
        self._agent_faults = AgentFaults(world, Random(f"agents/{plan.seed}"))

    @property
    def _processes(self) -> Processes:
        return self._world.processes

    def phases(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Those that the plan has."""
        plan = self._plan
        every = {
            "points": (plan.points != 0, self._die_at_points),
            "stops": (plan.stops != 0, self._stand_still_at_points),
            "storm": (plan.kills > 0, self._storm),
            "plans": (plan.rounds > 0, self._compare_plans),
            "steps": (plan.steps != (), self._take_steps),
        }
        return {name: act for name, (is_wanted, act) in every.items() if is_wanted}

    async def phase(self, folder: Path, act: Callable[[], Coroutine[Any, Any, None]]) -> Path:
        """Run one phase, mend everything, and write down what there is."""
        folder.mkdir()
        began, kills = time.time(), self._processes.kills
        await act()
        stopped = time.time()
        await self._heal()
        settled, state = await self._settle()
        self._world.flush()
        (folder / "final.json").write_bytes(orjson.dumps(state))
        meta = {
            **asdict(self._plan),
            "phase": folder.name,
            "began": began,
            "stopped": stopped,
            "ended": time.time(),
            "seconds": stopped - began,
            "settled_seconds": settled,
            "kills": self._processes.kills - kills,
            "load_average": os.getloadavg()[0],
        }
        (folder / "meta.json").write_bytes(orjson.dumps(meta))
        plans_file = folder.parent / "plans.json"
        if plans_file.exists():
            shutil.move(plans_file, folder / "plans.json")
        return folder

    # --- until it is over ---------------------------------------------------------------------

    async def _heal(self) -> None:
        """End every fault, and let people put back what they changed about the fleet."""
        self._processes.arm("")
        self._processes.kept_down.clear()
        for name in TARGETS:
            await self._world.rig.servers.heal(name)
        for cluster in self._world.rig.clusters.values():
            cluster.faults.clear()
        for name in DIRECT:
            self._world.point(name, name)
        await self._world.agents.heal()
        await self._world.rename_back()
        self._users.make_calm()
        await self._processes.start()

    async def _settle(self) -> tuple[float, dict[str, Any]]:
        """Wait until nothing is wrong, and nobody writes any more."""
        began = time.monotonic()
        state: dict[str, Any] = {"unreadable": "nothing was read yet", "orphans": []}
        patience = _MUTATED_SECONDS if self._plan.mutation else SETTLE_SECONDS
        while time.monotonic() - began < patience:
            await self._users.answer_all()
            await asyncio.sleep(_POLL_SECONDS)
            try:
                state = await read_state(self._world, self._client)
            except FleetbusError as e:  # a chunk was replaced between two reads, or is lost
                state = {"unreadable": str(e), "orphans": []}
                continue
            is_calm = time.monotonic() - self._world.last_write > _CALM_SECONDS
            if is_calm and not check_state(state):
                break
        return time.monotonic() - began, state

    # --- phases -------------------------------------------------------------------------------

    async def _die_at_points(self) -> None:
        numbered = [f"{side} write {n + 1}" for n in range(_NUMBERED) for side in (BEFORE, AFTER)]
        points = [*POINTS, *numbered]
        chosen = self._random.sample(points, len(points))[: self._plan.points]
        async with beside(users=self._users.keep_acting(0.05, 0.4)):
            for point in chosen:
                await self._die_at(point)
            if self._plan.points is None:
                await self._die_at_missed()

    async def _die_at_missed(self) -> None:
        """Once more where nobody came by."""
        for _ in range(_ROUNDS):
            died = {entry["point"] for entry in self._world.log if entry["kind"] == "died"}
            for point in sorted({*POINTS} - died):
                await self._die_at(point, _MISSED_SECONDS)

    async def _die_at(self, point: str, within: float = _POINT_SECONDS) -> None:
        """Wait until a process has died there; then it, or both, start again."""
        await self._processes.start()
        self._processes.arm(point)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            with suppress(ApiError):
                await self._users.provoke(point)
            if await self._processes.death(_PROVOKE_SECONDS):
                self._processes.note("died", point=point)
                break
        self._processes.arm("")
        await asyncio.sleep(self._random.uniform(0, 0.3))

    async def _stand_still_at_points(self) -> None:
        chosen = self._random.sample(DISTRIBUTOR_POINTS, len(DISTRIBUTOR_POINTS))
        async with beside(users=self._users.keep_acting(0.05, 0.4)):
            for point in chosen[: self._plan.stops]:
                await self._stand_still_at(point)

    async def _stand_still_at(self, point: str) -> None:
        """Whoever gets there first stands still for longer than a lease, and then goes on."""
        await self._processes.start()
        self._processes.arm(f"{STOP}{point}", *DISTRIBUTORS)
        deadline = time.monotonic() + _POINT_SECONDS
        while not (stopped := self._stopped()) and time.monotonic() < deadline:
            with suppress(ApiError):
                await self._users.provoke(point)
            await asyncio.sleep(_PROVOKE_SECONDS)
        self._processes.arm("", *DISTRIBUTORS)
        if stopped:
            self._processes.note("stopped", processes=stopped, point=point)
            await asyncio.sleep(self._random.uniform(*_STANDS))
        for name in stopped:
            self._processes.signal(name, signal.SIGCONT)

    def _stopped(self) -> list[str]:
        return [name for name in DISTRIBUTORS if self._processes.is_stopped(name)]

    async def _storm(self) -> None:
        acting = self._users.keep_acting(0.02, 0.5)
        async with beside(
            users=acting,
            faults=self._faults.keep_breaking(),
            agents=self._agent_faults.keep_breaking(),
        ):
            before = self._processes.kills
            while self._processes.kills - before < self._plan.kills:
                await self._processes.start()
                await self._until_one_writes()
                await asyncio.sleep(self._random.uniform(0, self._plan.pace))
                both = self._random.random() < 0.2
                names = DISTRIBUTORS if both else (self._random.choice(DISTRIBUTORS),)
                await self._processes.kill(*names, why="any-time")
                await asyncio.sleep(self._random.uniform(0, 0.4))

    async def _until_one_writes(self) -> None:
        """Who dies before it has done anything shows little; but no longer than some seconds."""
        began = time.monotonic()
        deadline = began + _ACTS_PATIENCE
        while self._world.last_write < began and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _compare_plans(self) -> None:
        """Compare plans with the writes that follow; in between nothing is written."""
        await self._heal()
        await self._settle()
        for _ in range(self._plan.rounds):
            chosen = self._random.sample(PLAIN, _PLANNED)
            specs = {name: self._users.spec(name) for name in chosen}
            await self._compare(specs)
        present = {name: resource["spec"] for name in PLAIN if (resource := self._users.read(name))}
        await self._compare(present)

    async def _compare(self, specs: dict[str, Any]) -> None:
        planned = await plans.plan(self._world, specs)
        self._world.flush()
        count = len(read_history(self._world.folder / "history.jsonl").writes)
        for name, spec in specs.items():
            self._users.replace(name, spec)
        await self._settle()
        self._world.flush()
        writes = read_history(self._world.folder / "history.jsonl").writes[count:]
        plans.keep(self._world.folder, planned, plans.changes_of(writes))

    async def _take_steps(self) -> None:
        await self._heal()
        await self._settle()
        stage = Stage(self._world, self._users)
        for name, step in STEPS.items():
            if self._plan.steps is None or name in self._plan.steps:
                self._processes.note("step", step=name)
                violations: list[Violation] = [v async for v in step(stage)]
                for violation in violations:
                    text = f"step {name}: {violation.text}"
                    self._processes.note("violation", rule=violation.rule, text=text)
                await self._heal()
