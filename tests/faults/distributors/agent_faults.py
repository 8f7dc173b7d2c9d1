"""Faults of the agents of targets that the hub cannot reach, and of their ways to NATS."""

from __future__ import annotations

import asyncio
import signal
from random import Random
from typing import Final

from faults.distributors.agents import agent_of, cluster_of, second_agent_of
from faults.distributors.faults import SeededFaults
from faults.distributors.kill_points import AGENT_POINTS
from faults.distributors.settings import AGENT_TIMES, BEHIND_AGENTS
from faults.distributors.world import World

_STANDS: Final = (0.2, 3 * AGENT_TIMES.stale_after)
"""Also so long that an agent refuses what has waited for it."""
_POINT_SECONDS: Final = 3.0
_BOTH_SERVE: Final = (0.3, 1.5)


class AgentFaults(SeededFaults):
    """Seeded faults of agents, one after the other.

    Args:
        world: where they run.
        random: the choices.
    """

    def __init__(self, world: World, random: Random) -> None:
        super().__init__(world, random)
        self.kinds = {
            "agent-killed": (4, self.kill),
            "agent-dies-at-point": (4, self.die_at_point),
            "agent-stands-still": (3, self.stand_still),
            "agent-parted": (4, self.part),
            "agent-revoked": (1, self.revoke),
            "agents-swapped": (2, self.swap),
            "two-agents": (4, self.two),
        }

    def _any_agent(self) -> str:
        return self._random.choice(sorted(self._world.processes.agents))

    async def kill(self) -> None:
        """An agent is killed, and nobody starts it for a while."""
        await self._kill(self._any_agent())

    async def _kill(self, name: str) -> None:
        processes = self._world.processes
        processes.kept_down.add(name)
        try:
            await processes.kill(name, why="any-time")
            await self._last()
        finally:
            await self._start(name)

    async def die_at_point(self) -> None:
        """An agent is killed just before or after an API server has done what it was asked."""
        name, point = self._any_agent(), self._random.choice(AGENT_POINTS)
        processes = self._world.processes
        processes.kept_down.add(name)
        processes.arm(point, name)
        try:
            if await processes.is_dead(name, _POINT_SECONDS):
                await self._last()
        finally:
            processes.arm("", name)
            await self._start(name)

    async def _start(self, name: str) -> None:
        self._world.processes.kept_down.discard(name)
        await self._world.processes.start(name)

    async def stand_still(self) -> None:
        """An agent gets no CPU, and then finds everything that has waited for it."""
        await self._stop_and_continue(self._any_agent())

    async def _stop_and_continue(self, name: str) -> None:
        self._world.processes.signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._random.uniform(*_STANDS))
        finally:
            self._world.processes.signal(name, signal.SIGCONT)

    async def part(self) -> None:
        """An agent and NATS do not reach each other, or one of them does not know it."""
        link = self._world.agents.nats_links[self._any_agent()]
        match self._random.choice(("cut", "refuse", "hold", "hold-up", "hold-down")):
            case "cut":
                link.cut()
            case "refuse":
                link.refuse()
            case held:
                link.hold(up=held != "hold-down", down=held != "hold-up")
        try:
            await self._last()
            if self._random.random() < 0.5:
                link.cut()  # what was held is lost
        finally:
            link.heal()

    async def revoke(self) -> None:
        """The login of a cluster's agents is refused, and then accepted again."""
        cluster = cluster_of(self._any_agent())
        self._world.agents.revoke(cluster)
        try:
            await self._last()
        finally:
            self._world.agents.admit(cluster)

    async def swap(self) -> None:
        """The API servers that two agents dial are exchanged."""
        first, other = BEHIND_AGENTS
        agents = self._world.agents
        try:
            await agents.lead(first, other)
            await agents.lead(other, first)
            await self._last()
        finally:
            await agents.lead(first, first)
            await agents.lead(other, other)

    async def two(self) -> None:
        """A cluster has two agents, and one of them goes: in good order, or not."""
        cluster = cluster_of(self._any_agent())
        self._world.agents.add_second(cluster)
        try:
            await asyncio.sleep(self._random.uniform(*_BOTH_SERVE))
            name = self._random.choice((agent_of(cluster), second_agent_of(cluster)))
            go = self._random.choice((self._kill, self._terminate, self._stop_and_continue))
            await go(name)
        finally:
            self._world.agents.remove_second(cluster)

    async def _terminate(self, name: str) -> None:
        processes = self._world.processes
        processes.kept_down.add(name)
        try:
            await processes.terminate(name)
            await self._last()
        finally:
            await self._start(name)
