"""The faults of the campaign of the query API: its processes, and everything behind them.

Each is a coroutine that does the damage, waits, and undoes it. They come in decks of one of each,
two at a time, with a calm after each deck; at the end the last changes are made while no query API
runs, so that nothing later makes good what a client missed of them.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis

from faults.queries.fleet import QueryFleet
from faults.queries.settings import APIS, STORE_WIPED
from faults.rig.scene import BaseScene
from faults.rig.settings import CLUSTERS, WATCHERS
from fleetbus_emulator.apiserver import Partition

_AT_ONCE: Final = 2
_AWAY_SECONDS: Final = (0.0, 2.0)
_LAST_CHANGES_SECONDS: Final = 1.5


@dataclass
class QueryScene(BaseScene[QueryFleet]):
    """Everything that a fault may touch.

    Attributes:
        locks: by process or cluster, one fault at a time.
    """

    locks: dict[str, asyncio.Lock] = field(
        default_factory=lambda: {
            name: asyncio.Lock()
            for name in (*APIS, *CLUSTERS, *WATCHERS, "projector", "valkey", "nats")
        }
    )


Act = Callable[[QueryScene], Awaitable[None]]


@dataclass(frozen=True)
class QueryFault:
    """One kind of damage."""

    name: str
    act: Act


# --- the query API ----------------------------------------------------------------------------


async def _kill_api(scene: QueryScene) -> None:
    name = scene.random.choice(APIS)
    async with scene.locks[name], scene.noted("api-killed", process=name):
        scene.fleet.kill(name, "api-killed")
        await scene.pause(*_AWAY_SECONDS)
        scene.fleet.start(name)


async def _terminate_api(scene: QueryScene) -> None:
    """It ends its watches in good order, and their clients go on elsewhere."""
    name = scene.random.choice(APIS)
    async with scene.locks[name], scene.noted("api-terminated", process=name):
        await scene.fleet.apis[name].stop()
        await scene.pause(*_AWAY_SECONDS)
        scene.fleet.start(name)


async def _kill_all_apis(scene: QueryScene) -> None:
    async with (
        scene.locks[APIS[0]],
        scene.locks[APIS[1]],
        scene.noted("all-apis-killed"),
    ):
        for name in APIS:
            scene.fleet.kill(name, "all-apis-killed")
        await scene.pause(*_AWAY_SECONDS)
        for name in APIS:
            scene.fleet.start(name)


async def _stop_api(scene: QueryScene) -> None:
    """Its connections stay, and nothing comes."""
    name = scene.random.choice(APIS)
    async with scene.locks[name], scene.noted("api-stopped", process=name):
        scene.fleet.signal(name, signal.SIGSTOP)
        try:
            await scene.pause(1, 8)
        finally:
            scene.fleet.signal(name, signal.SIGCONT)


# --- what it stands on --------------------------------------------------------------------------


async def _kill_valkey(scene: QueryScene) -> None:
    """Its append-only file has everything."""
    async with scene.locks["valkey"], scene.noted("valkey-killed"):
        scene.fleet.valkey.kill()
        await scene.pause(*_AWAY_SECONDS)
        await scene.fleet.valkey.restart()


async def _stop_valkey(scene: QueryScene) -> None:
    async with scene.locks["valkey"], scene.noted("valkey-stopped"):
        scene.fleet.valkey.process.send_signal(signal.SIGSTOP)
        try:
            await scene.pause(0.5, 6)
        finally:
            scene.fleet.valkey.process.send_signal(signal.SIGCONT)


async def _flush_valkey(scene: QueryScene) -> None:
    """The same process goes on, empty."""
    async with (
        scene.locks["valkey"],
        scene.noted(STORE_WIPED, how="flushed"),
        Redis.from_url(scene.fleet.valkey.url) as redis,
    ):
        await redis.flushall()


async def _lose_valkey(scene: QueryScene) -> None:
    """Killed, and its disk is lost."""
    async with scene.locks["valkey"], scene.noted(STORE_WIPED, how="disk lost"):
        scene.fleet.valkey.kill()
        shutil.rmtree(scene.fleet.folder / "valkey" / "appendonlydir")
        await scene.pause(*_AWAY_SECONDS)
        await scene.fleet.valkey.restart()


async def _kill_projector(scene: QueryScene) -> None:
    async with scene.locks["projector"], scene.noted("projector-killed"):
        scene.fleet.kill("projector", "projector-killed")
        await scene.pause(*_AWAY_SECONDS)
        scene.fleet.start("projector")


# --- what fills it ------------------------------------------------------------------------------


async def _kill_nats(scene: QueryScene) -> None:
    async with scene.locks["nats"], scene.noted("nats-killed"):
        scene.fleet.nats_server.kill()
        await scene.pause(*_AWAY_SECONDS)
        await scene.fleet.nats_server.restart()


async def _wipe_nats(scene: QueryScene) -> None:
    async with scene.locks["nats"], scene.noted("nats-wiped"):
        scene.fleet.nats_server.kill()
        scene.fleet.replace_store(None)
        await scene.pause(*_AWAY_SECONDS)
        await scene.fleet.nats_server.restart()


async def _part_cluster(scene: QueryScene) -> None:
    """A cluster and its watchers; also everybody else, of whom there is nobody here."""
    cluster, how = scene.random.choice(CLUSTERS), scene.random.choice(list(Partition))
    async with scene.locks[cluster], scene.noted("cluster-parted", cluster=cluster, how=how):
        await scene.fleet.admin.partition(cluster, how)
        try:
            await scene.pause(1, 8)
        finally:
            await scene.fleet.admin.heal(cluster)


async def _part_watcher(scene: QueryScene) -> None:
    """A watcher and NATS; what was on the way may be lost."""
    watcher = scene.random.choice(list(WATCHERS))
    link = scene.fleet.links[watcher]
    async with scene.locks[watcher], scene.noted("watcher-parted", process=watcher):
        link.hold()
        try:
            await scene.pause(0.5, 5)
        finally:
            if scene.random.random() < 0.5:
                link.cut()
            link.heal()


async def _kill_watcher(scene: QueryScene) -> None:
    watcher = scene.random.choice(list(WATCHERS))
    async with scene.locks[watcher], scene.noted("watcher-killed", process=watcher):
        scene.fleet.kill(watcher, "watcher-killed")
        await scene.pause(*_AWAY_SECONDS)
        scene.fleet.start(watcher)


QUERY_FAULTS: Final = (
    QueryFault("api-killed", _kill_api),
    QueryFault("api-terminated", _terminate_api),
    QueryFault("all-apis-killed", _kill_all_apis),
    QueryFault("api-stopped", _stop_api),
    QueryFault("valkey-killed", _kill_valkey),
    QueryFault("valkey-stopped", _stop_valkey),
    QueryFault("valkey-flushed", _flush_valkey),
    QueryFault("valkey-lost", _lose_valkey),
    QueryFault("projector-killed", _kill_projector),
    QueryFault("nats-killed", _kill_nats),
    QueryFault("nats-wiped", _wipe_nats),
    QueryFault("cluster-parted", _part_cluster),
    QueryFault("watcher-parted", _part_watcher),
    QueryFault("watcher-killed", _kill_watcher),
)


async def break_deck(scene: QueryScene, kinds: Sequence[QueryFault]) -> None:
    """One fault of each kind, two at a time."""
    deck = scene.random.sample(kinds, len(kinds))

    async def act() -> None:
        while deck:
            await deck.pop().act(scene)
            await scene.pause(0.1, 1.5)

    async with asyncio.TaskGroup() as group:
        for number in range(_AT_ONCE):
            group.create_task(act(), name=f"faults-{number}")


async def finish(scene: QueryScene) -> None:
    """The last changes of all are made while no query API runs."""
    fleet = scene.fleet
    async with scene.noted("last-changes"):
        if scene.random.random() < 0.5:
            for name in APIS:
                fleet.kill(name, "last-changes")
        else:
            await asyncio.gather(*(fleet.apis[name].stop() for name in APIS))
        await asyncio.sleep(_LAST_CHANGES_SECONDS)
        await fleet.load(0)
        for name in APIS:
            fleet.start(name)
