"""One seed of the campaign of the query API: clients watch while everything breaks under load.

Decks of faults with a calm after each, then last changes that are made while no query API runs.
Afterwards the load has stopped and everything is mended, and it is noted when the cache of each
client equals the API servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import orjson

from faults.queries.faults import QUERY_FAULTS, QueryScene, break_deck, finish
from faults.queries.fleet import QueryFleet, running_query_fleet
from faults.queries.followers import Follower, following, read_clusters
from faults.queries.objects import Objects, selected
from faults.queries.settings import CALM_SECONDS, CLIENTS
from faults.rig.recorder import sizes, write_log, write_meta
from faults.watchers.campaign import beside
from fleetbus_devfleet.processes.children import ChildError

_SYNC_SECONDS: Final = 90
_SETTLE_SECONDS: Final = 240
"""Long enough to see whether it comes late or never."""
_MUTATED_SECONDS: Final = 30
"""A mutation shows itself in what is wrong, not only in how long it stays so."""
_BACK_SECONDS: Final = 75.0
"""client-go waits for up to a minute after several errors."""
_POLL_SECONDS: Final = 0.5
_STAYS_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
KINDS: Final = frozenset(plan.kind for plan in CLIENTS)


@dataclass(frozen=True)
class QueryPlan:
    """The plan of one seed.

    Attributes:
        seed: of the load and of every choice.
        decks: how many times each fault has its turn.
        rate: writes per second.
        calm: seconds of load without faults after each deck.
        mutation: a rule of the product that is disabled, for checking the checker.
        faults: only these; empty for all.
        kinds: of clients, only these.
    """

    seed: int
    decks: int = 3
    rate: float = 60.0
    calm: float = CALM_SECONDS
    mutation: str = ""
    faults: tuple[str, ...] = ()
    kinds: frozenset[str] = KINDS


async def run_queries(plan: QueryPlan, folder: Path) -> AsyncGenerator[Path]:
    """Run a seed; yields the folder of its one phase when it is recorded."""
    async with running_query_fleet(folder, plan.seed, mutation=plan.mutation) as fleet:
        await fleet.wait_until_served()
        async with (
            following(fleet, folder, plan.seed, plan.kinds) as followers,
            beside(sample=_sample(fleet, folder), guard=_restart_ended(fleet)),
        ):
            await _sync(fleet, followers)
            scene = QueryScene(fleet, Random(f"query-faults/{plan.seed}"))
            phase = await _phase(scene, plan, followers, folder / "watches")
        yield phase


async def _phase(
    scene: QueryScene, plan: QueryPlan, followers: Sequence[Follower], folder: Path
) -> Path:
    fleet = scene.fleet
    folder.mkdir()
    kinds = [fault for fault in QUERY_FAULTS if not plan.faults or fault.name in plan.faults]
    before, begun = await fleet.load(plan.rate), time.time()
    try:
        for _ in range(plan.decks):
            await break_deck(scene, kinds)
            await asyncio.sleep(plan.calm)
        await _all_watch(followers)
        await finish(scene)
    finally:
        written = await fleet.load(0)
    stopped = time.time()
    for name in fleet.services:
        fleet.start(name)
    within = _MUTATED_SECONDS if plan.mutation else _SETTLE_SECONDS
    agreed = await _settle(fleet, followers, within)
    await _write_caches(fleet, followers, folder)
    write_meta(
        folder,
        plan,
        began=begun,
        stopped=stopped,
        writes=sum(written.values()) - sum(before.values()),
        settled=max(agreed.values()) if len(agreed) == len(followers) else within,
        agreed=agreed,
        clients=[follower.record.plan.name for follower in followers],
    )
    write_log(fleet, folder / "log.jsonl")
    return folder


# --- until everybody agrees ---------------------------------------------------------------------


async def _sync(fleet: QueryFleet, followers: Sequence[Follower]) -> None:
    """Wait until every client has what is there at the beginning.

    Raises:
        ChildError: one does not get it, or a service ends; that is no fault's doing.
    """
    deadline = time.monotonic() + _SYNC_SECONDS
    truth = await read_clusters(fleet)
    while late := [
        follower.record.plan.name for follower in followers if not await _agrees(follower, truth)
    ]:
        for line in fleet.log:
            if line["kind"] == "ended":
                raise ChildError(f"{line['process']} ended before any fault: {line['words']}")
        if time.monotonic() > deadline:
            raise ChildError(f"no first sync of {late}; the logs are in {fleet.folder}")
        await asyncio.sleep(_POLL_SECONDS)


async def _all_watch(followers: Sequence[Follower]) -> None:
    """Wait until every watch is open again: only then there are last changes to miss."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BACK_SECONDS):
            while not all(follower.record.is_watching for follower in followers):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)


async def _settle(
    fleet: QueryFleet, followers: Sequence[Follower], within: float
) -> dict[str, float]:
    """When each client agreed with the API servers, and still did at the end; others are absent."""
    truth, begun = await read_clusters(fleet), time.monotonic()
    agreed: dict[str, float] = {}
    while len(agreed) < len(followers) and time.monotonic() - begun < within:
        for follower in followers:
            name = follower.record.plan.name
            if await _agrees(follower, truth):
                agreed.setdefault(name, time.monotonic() - begun)
            else:
                agreed.pop(name, None)
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_STAYS_SECONDS)
    return agreed


async def _agrees(follower: Follower, truth: Objects) -> bool:
    with suppress(TimeoutError):
        return await follower.read_cache() == selected(truth, follower.record.plan)
    return False


async def _write_caches(fleet: QueryFleet, followers: Sequence[Follower], folder: Path) -> None:
    truth = await read_clusters(fleet)
    (folder / "final.json").write_bytes(orjson.dumps(truth, default=tuple))
    caches = {follower.record.plan.name: await follower.read_cache() for follower in followers}
    (folder / "caches.json").write_bytes(orjson.dumps(caches, default=tuple))


# --- beside -------------------------------------------------------------------------------------


async def _restart_ended(fleet: QueryFleet) -> None:
    """A service that ends by itself is noted, and started again like by a kubelet."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for name, child in fleet.services.items():
            status = child.exit_status
            if status is not None and status > 0:  # 0: it was stopped
                fleet.note("ended", process=name, status=status, words=child.last_words())
                fleet.start(name)


async def _sample(fleet: QueryFleet, folder: Path) -> None:
    """Every second the memory of each service, until cancelled."""
    with (folder / "memory.jsonl").open("wb") as memory:
        while True:
            for name, size in sizes(fleet):
                memory.write(orjson.dumps([round(time.time(), 2), name, size]) + b"\n")
            memory.flush()
            await asyncio.sleep(1.0)
