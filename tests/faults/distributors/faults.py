"""Faults around the distributors: targets, the hub, and which cluster is behind a name.

Those of the agents are in `agent_faults`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any, Final

from faults.distributors.settings import AGENT, DIRECT, HUB, TARGETS
from faults.distributors.world import World
from fleetbus_emulator.apiserver import Abort, Action, CutAnswer, Delay, Fail
from fleetbus_emulator.apiserver.http.partition import Partition

_SECONDS: Final = (0.5, 2.5)
_PAUSES: Final = (0.2, 1.5)
_BACKUP_AGE: Final = (0.3, 3.0)


class SeededFaults:
    """Faults in a seeded order, one after the other.

    Args:
        world: what breaks.
        random: the choices.

    Attributes:
        kinds: the weight of each kind, and what it does.
    """

    kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]]

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random

    async def keep_breaking(self) -> None:
        """Each kind once, in any order, and then as the dice fall, until cancelled."""
        for kind in self._random.sample([*self.kinds], len(self.kinds)):
            await self.one(kind)
        while True:
            weights = [weight for weight, _ in self.kinds.values()]
            await self.one(self._random.choices([*self.kinds], weights)[0])

    async def one(self, kind: str) -> None:
        """Break and mend one thing."""
        await asyncio.sleep(self._random.uniform(*_PAUSES))
        self._world.processes.note("fault", fault=kind, phase="begin")
        try:
            await self.kinds[kind][1]()
        finally:
            self._world.processes.note("fault", fault=kind, phase="end")

    async def _last(self) -> None:
        await asyncio.sleep(self._random.uniform(*_SECONDS))


class Faults(SeededFaults):
    """Seeded faults of targets, the hub, and the names of clusters.

    Args:
        world: what breaks.
        random: the choices.
    """

    def __init__(self, world: World, random: Random) -> None:
        super().__init__(world, random)
        self.kinds = {
            "partition": (4, self.partition),
            "deny": (3, self.deny),
            "lose-answers": (4, self.lose_answers),
            "slow": (2, self.slow),
            "hub-loses-answers": (3, self.hub_loses_answers),
            "hub-fails": (2, self.hub_fails),
            "swap": (2, self.swap),
            "rename": (2, self.rename),
            "careless-rename": (1, self.careless_rename),
            "restore-hub": (2, self.restore_hub),
        }

    @asynccontextmanager
    async def _rule(self, cluster: str, action: Action, **match: Any) -> AsyncGenerator[None]:
        faults = self._world.rig.clusters[cluster].faults
        # Only distributors are broken here: what watchers see is the other campaigns' business.
        rule = faults.add(action, user_agent=AGENT, **match)
        try:
            yield
        finally:
            rule.remove()

    # --- targets ------------------------------------------------------------------------------

    async def partition(self) -> None:
        """Nobody reaches a target, or gets an answer."""
        name = self._random.choice(TARGETS)
        servers = self._world.rig.servers
        await servers.partition(name, self._random.choice([*Partition]))
        try:
            await self._last()
        finally:
            await servers.heal(name)

    async def deny(self) -> None:
        """A target refuses all writes, or all deletions."""
        verb = self._random.choice((None, "delete", "patch"))
        resource = self._random.choice(("configmaps", "serviceaccounts"))
        name = self._random.choice(TARGETS)
        async with self._rule(name, Fail(status=403), verb=verb, resource=resource):
            await self._last()

    async def lose_answers(self) -> None:
        """A target does what it is asked, and half of its answers are lost."""
        action = self._random.choice((Abort(after_commit=True), CutAnswer(share=0.5)))
        name = self._random.choice(TARGETS)
        verb = self._random.choice(("patch", "delete"))
        async with self._rule(name, action, verb=verb, probability=0.5):
            await self._last()

    async def slow(self) -> None:
        """A target answers late, with the write done early or late."""
        late = timedelta(seconds=self._random.uniform(0.2, 0.8))
        action = Delay(late, after_commit=self._random.random() < 0.5)
        async with self._rule(self._random.choice(TARGETS), action, probability=0.5):
            await self._last()

    # --- the hub ------------------------------------------------------------------------------

    async def hub_loses_answers(self) -> None:
        """Writes to the hub are committed, and their answers lost."""
        verb = self._random.choice(("update", "patch", "create"))
        async with self._rule(HUB, Abort(after_commit=True), verb=verb, probability=0.4):
            await self._last()

    async def hub_fails(self) -> None:
        """The hub answers with errors."""
        verb = self._random.choice(("get", "update", "list"))
        async with self._rule(HUB, Fail(status=500), verb=verb, probability=0.4):
            await self._last()

    async def restore_hub(self) -> None:
        """The hub is restored from a backup some seconds old."""
        version = self._world.hub.resource_version
        await asyncio.sleep(self._random.uniform(*_BACKUP_AGE))
        self._world.restore_hub(version)

    # --- who is behind a name -----------------------------------------------------------------

    async def swap(self) -> None:
        """The kubeconfigs of two targets are exchanged."""
        first, other = DIRECT
        self._world.point(first, other)
        self._world.point(other, first)
        try:
            await self._last()
        finally:
            self._world.point(first, first)
            self._world.point(other, other)

    async def rename(self) -> None:
        """A target is unjoined, joins under another name, and later comes back."""
        await self._rename(recorded=True)

    async def careless_rename(self) -> None:
        """The same, but its Cluster is deleted by hand."""
        await self._rename(recorded=False)

    async def _rename(self, *, recorded: bool) -> None:
        await self._world.rename(recorded=recorded)
        try:
            await self._last()
        finally:
            await self._world.rename_back()
