"""Small faults, one at a time: each is undone before the next one begins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import aiohttp

from fleetbus_devfleet.stack.plan import APISERVER, agent_of, watcher_of
from fleetbus_devfleet.stack.stack import NATS, VALKEY
from fleetbus_emulator.apiserver import Partition
from soak.churn import Churn
from soak.fleet import SPARED, SoakFleet
from support.processes.programs import installed

BURST: Final = 150
_AWAY_SECONDS: Final = (5.0, 60.0)
_DOWN_SECONDS: Final = (0.0, 3.0)
_TRIES: Final = 5


class Faults:
    """Breaks things at random.

    Args:
        fleet: of which.
        churn: the load, for bursts.
        random: the choices.
        pace: seconds between two faults, on average.
    """

    def __init__(self, fleet: SoakFleet, churn: Churn, random: Random, pace: float) -> None:
        self._fleet = fleet
        self._churn = churn
        self._random = random
        self._pace = pace
        self._spares = False

    def spare(self) -> None:
        """From now on one process of each kind lives until the end, so that it shows its slope."""
        self._spares = True

    async def run(self, stop: asyncio.Event) -> None:
        """Each kind once, in any order, again and again; ends between two faults."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._kill,
            self._kill,
            self._part,
            self._part,
            self._expire,
            self._restart_nats,
            self._restart_valkey,
            self._leave,
            self._burst,
        ]
        deck: list[Callable[[], Awaitable[None]]] = []
        while not stop.is_set():
            deck = deck or self._random.sample(kinds, len(kinds))
            await self._wait(stop, self._pace * self._random.uniform(0.5, 1.5))
            if not stop.is_set():
                await deck.pop()()

    async def _wait(self, stop: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            pass

    @property
    def _victims(self) -> list[str]:
        names = {*self._fleet.processes()} - {APISERVER, NATS, VALKEY} - self._fleet.down
        if self._spares:
            first = self._fleet.stack.plan.behind_agents[0]
            names -= {*SPARED, watcher_of(first), agent_of(first)}
        return sorted(names)

    async def _kill(self) -> None:
        name = self._random.choice(self._victims)
        self._fleet.note("killed", process=name)
        self._fleet.kill(name)
        await self._pause(_DOWN_SECONDS)
        await self._fleet.start(name)

    async def _part(self) -> None:
        cluster = self._random.choice(self._fleet.clusters[1:])
        how = self._random.choice([Partition.HANG, Partition.REFUSE])
        self._fleet.note("away", cluster=cluster, how=how.value)
        self._fleet.away.add(cluster)
        await _answered(lambda: self._fleet.admin.partition(cluster, how))
        await self._pause(_AWAY_SECONDS)
        await _answered(lambda: self._fleet.admin.heal(cluster))
        self._fleet.away.discard(cluster)

    async def _expire(self) -> None:
        cluster = self._random.choice(self._fleet.clusters)
        self._fleet.note("expired", cluster=cluster)
        await _answered(lambda: self._fleet.admin.compact(cluster))

    async def _restart_nats(self) -> None:
        await self._restart(NATS)

    async def _restart_valkey(self) -> None:
        await self._restart(VALKEY)

    async def _restart(self, server: str) -> None:
        """It is stopped in good order: a crash may lose writes, which is for `make faults`."""
        self._fleet.note("restarted", process=server)
        await self._fleet.start(server)

    async def _burst(self) -> None:
        cluster = self._random.choice(self._fleet.clusters)
        self._fleet.note("burst", cluster=cluster)
        await self._churn.burst(cluster, BURST)

    async def _leave(self) -> None:
        """The guest leaves the fleet, and joins it again."""
        guest = self._fleet.guest
        self._fleet.note("left", cluster=guest)
        self._fleet.away.add(guest)
        await self._fleetbus("unjoin", guest)
        await self._pause(_AWAY_SECONDS)
        file = str(self._fleet.stack.kubeconfig)
        words = ("join", guest, "-f", file, "--context", guest, "--label", "role=guest", "--http")
        await self._fleetbus(*words)
        self._fleet.away.discard(guest)
        self._fleet.note("joined", cluster=guest)

    async def _fleetbus(self, *words: str) -> None:
        """Run a command, again if the hub was too busy to answer in time."""
        output = ""
        for _ in range(_TRIES):
            status, output = await self._run_fleetbus(*words)
            if status == 0:
                return
            self._fleet.note("refused", command=words[0], output=output)
        raise AssertionError((words, output))

    async def _run_fleetbus(self, *words: str) -> tuple[int | None, str]:
        layout = self._fleet.stack.plan.layout
        process = await asyncio.create_subprocess_exec(
            *installed("fleetbus", *words),
            *("--hub-kubeconfig", str(layout.hub_kubeconfig)),
            env=os.environ | {"FLEETBUS_ALLOW_LOOPBACK": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    async def _pause(self, seconds: tuple[float, float]) -> None:
        least, most = seconds
        await asyncio.sleep(self._random.uniform(least, min(most, 2 * self._pace)))


async def _answered(ask: Callable[[], Awaitable[Any]]) -> None:
    """Ask the admin endpoint until it answers: on a busy machine that may take a while."""
    for _ in range(_TRIES):
        with suppress(aiohttp.ClientError, TimeoutError):
            await ask()
            return
    await ask()
