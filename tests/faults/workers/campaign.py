"""One seed of the campaign of workers: break them under load, then once more in peace.

Three phases. `kills`: workers are killed and paused, stores fail beside; at the end the last
changes are in doubt. `peace`: load without faults that ends at once. After each the load stops,
everything is mended, and what there is is written down when bus, queue and snapshot are through.
`updates`: rolling updates that change which controllers there are (`rollouts.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import orjson
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from faults.rig.load import CONFIG_MAPS
from faults.rig.recorder import read_snapshot, sizes, write_log, write_meta
from faults.watchers.campaign import beside
from faults.workers.faults import (
    STORE_FAULTS,
    WORKER_KILLS,
    WorkerKill,
    WorkerScene,
    break_stores,
    finish,
    kill_worker,
    pause_workers,
)
from faults.workers.fleet import WorkerFleet, running_worker_fleet
from faults.workers.settings import (
    CONTROLLER,
    LONGEST_RUN,
    POISON_DEATHS,
    SLOW_STORE,
    SOURCES,
    WORKERS,
)
from faults.workers.updates import run_phase
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.reader_groups import durables_of
from fleetbus.errors import BusError
from fleetbus_devfleet.processes.children import ChildError
from fleetbus_proto import keys
from fleetbus_proto.resources import parse_resource
from support.stores.initial_sync import is_synced

_SYNC_SECONDS: Final = 60
_SETTLE_SECONDS: Final = 150
"""Long enough to see whether it comes late or never."""
_POLL_SECONDS: Final = 0.3
_SLOW_SECONDS: Final = 0.3
_PULSE_SECONDS: Final = 0.1
_SAMPLE_SECONDS: Final = 1.0
_QUEUE: Final = ("dirty", "delayed", "processing", "leases", "quarantine", "suspects", "attempts")
_RESOURCE: Final = parse_resource(CONFIG_MAPS).key


@dataclass(frozen=True)
class WorkerPlan:
    """The plan of one seed.

    Attributes:
        seed: of the load and of every choice.
        kills: how many workers are killed under load.
        pauses: how many are stopped for longer than a lease, at least.
        rate: writes per second.
        peace: seconds of load without faults.
        mutation: a rule of the product that is disabled, for checking the checker.
        pace: seconds between two kills, on average.
        deaths: how often the poisoned key kills.
        faults: only these beside the kills; empty for all.
        longest: how many leases a run takes at most.
        ends: in how many of the two ways the last changes come to be in doubt.
        updates: how many rolling updates there are.
        has_kills: whether there are the phases before the updates.
    """

    seed: int
    kills: int = 150
    pauses: int = 30
    rate: float = 100.0
    peace: float = 8.0
    mutation: str = ""
    pace: float = 0.9
    deaths: int = POISON_DEATHS
    faults: tuple[str, ...] = ()
    longest: float = LONGEST_RUN
    ends: int = 2
    updates: int = 12
    has_kills: bool = True


async def run_workers(plan: WorkerPlan, folder: Path) -> AsyncGenerator[Path]:
    """Run a seed; yields the folder of each phase when it is recorded."""
    if plan.has_kills:
        async with aclosing(_run_kills(plan, folder)) as phases:
            async for phase in phases:
                yield phase
    if plan.updates:
        async with aclosing(run_phase(plan, folder)) as phases:
            async for phase in phases:
                yield phase


async def _run_kills(plan: WorkerPlan, folder: Path) -> AsyncGenerator[Path]:
    (folder / "poison").write_bytes(b"x" * (POISON_DEATHS - plan.deaths))
    async with (
        running_worker_fleet(
            folder, plan.seed, longest=plan.longest, mutation=plan.mutation
        ) as fleet,
        connected(fleet.nats.url, name="campaign") as bus,
        beside(
            sample=_sample(fleet, folder),
            guard=_start_again(fleet),
            store_liveness=_feel_store(fleet),
        ),
    ):
        await _sync(fleet, bus, folder)
        scene = WorkerScene(fleet, Random(f"worker-faults/{plan.seed}"))
        yield await _phase(fleet, bus, plan, folder / "kills", _break(scene, plan))
        yield await _phase(fleet, bus, plan, folder / "peace", asyncio.sleep(plan.peace))


async def _phase(
    fleet: WorkerFleet,
    bus: Bus,
    plan: WorkerPlan,
    folder: Path,
    breaking: Coroutine[Any, Any, None],
) -> Path:
    folder.mkdir()
    fleet.gone.clear()
    _start_all(fleet)
    before, begun = await fleet.load(plan.rate), time.time()
    try:
        await breaking
    finally:
        written = await fleet.load(0)
    stopped = time.time()
    _start_all(fleet)
    settled = await _settle(fleet, bus, folder)
    writes = sum(written.values()) - sum(before.values())
    write_meta(folder, plan, began=begun, stopped=stopped, writes=writes, settled=settled)
    write_log(fleet, folder.parent / "log.jsonl")
    return folder


def _start_all(fleet: WorkerFleet) -> None:
    for name in fleet.services.keys() - fleet.gone:
        fleet.start(name)


async def _break(scene: WorkerScene, plan: WorkerPlan) -> None:
    random = Random(f"worker-kills/{plan.seed}")
    # One of each kind first, so that a short run has them too.
    chosen = random.sample(WORKER_KILLS, len(WORKER_KILLS))
    weights = [kill.weight for kill in WORKER_KILLS]
    chosen += random.choices(WORKER_KILLS, weights, k=max(0, plan.kills - len(chosen)))
    faults = [fault for fault in STORE_FAULTS if not plan.faults or fault.name in plan.faults]
    async with beside(pauses=pause_workers(scene), stores=break_stores(scene, faults)):
        for kill in chosen[: plan.kills]:
            await kill_worker(scene, kill, plan.pace)
        while scene.pauses < plan.pauses:
            await kill_worker(scene, WorkerKill("any-time", 1), plan.pace)
    await finish(scene, plan.rate, plan.ends)


# --- until it is over -------------------------------------------------------------------------


async def _sync(fleet: WorkerFleet, bus: Bus, folder: Path) -> None:
    """Wait until the first lists have been enqueued, and somebody works on them.

    Raises:
        ChildError: they are not; that is no fault's doing.
    """
    deadline = time.monotonic() + _SYNC_SECONDS
    effects = folder / "effects.jsonl"
    while not (effects.exists() and await _agrees(fleet, bus, folder) and await _is_synced(fleet)):
        for line in fleet.log:
            if line["kind"] == "ended":
                raise ChildError(f"{line['process']} ended before any fault: {line['words']}")
        if time.monotonic() > deadline:
            raise ChildError(f"no first sync within {_SYNC_SECONDS} s; the logs are in {folder}")
        await asyncio.sleep(_POLL_SECONDS)


async def _is_synced(fleet: WorkerFleet) -> bool:
    async with Redis.from_url(fleet.valkey.url) as redis:
        return await is_synced(redis, CONTROLLER)


async def _settle(fleet: WorkerFleet, bus: Bus, folder: Path) -> float:
    """Wait until everybody is through; answers how long it took, and writes down what there is."""
    begun = time.monotonic()
    took, calm = 0.0, 0
    while took < _SETTLE_SECONDS and calm < 2:
        is_through = await _agrees(fleet, bus, folder) and await _is_empty(fleet, folder)
        calm = calm + 1 if is_through else 0
        took = time.monotonic() - begun
        await asyncio.sleep(_POLL_SECONDS)
    return took


async def _is_empty(fleet: WorkerFleet, folder: Path) -> bool:
    """Whether nothing is left in the queue; what is left is written down."""
    try:
        left = await _queue(fleet)
    except RedisError as e:
        # Its process was killed a moment ago, or is still reading its file.
        left = {f"unreadable: {e}": 1}
    (folder / "queue.json").write_bytes(orjson.dumps(left))
    return not any(left.values())


async def _agrees(fleet: WorkerFleet, bus: Bus, folder: Path) -> bool:
    """Whether the snapshot is like the clusters, and nothing is left on the bus."""
    await fleet.dump(folder / "final.json")
    final = orjson.loads((folder / "final.json").read_bytes())
    try:
        snapshot = orjson.loads(orjson.dumps(await read_snapshot(fleet)))
        (folder / "snapshot.json").write_bytes(orjson.dumps(snapshot))
        is_equal = all(snapshot[name][_RESOURCE] == final[name][_RESOURCE] for name in SOURCES)
        return is_equal and await _is_read(bus)
    except (BusError, RedisError):
        return False


async def _is_read(bus: Bus) -> bool:
    """Whether the controller has acknowledged all there is."""
    infos = [await consumer_info(bus, name) for name in await durables_of(bus, CONTROLLER)]
    present_infos = [info for info in infos if info is not None]
    return bool(present_infos) and all(
        info["num_pending"] == 0 and info["num_ack_pending"] == 0 for info in present_infos
    )


async def _queue(fleet: WorkerFleet) -> dict[str, int]:
    """Return how many keys are in each part of the queue."""
    counts: dict[str, int] = {}
    async with Redis.from_url(fleet.valkey.url) as redis:
        for suffix in _QUEUE:
            key = keys.queue(CONTROLLER, suffix)
            kind = cast("bytes", await cast("Any", redis.type(key)))
            count = redis.zcard if kind == b"zset" else redis.hlen
            counts[suffix] = 0 if kind == b"none" else await cast("Any", count(key))
    return counts


# --- beside -----------------------------------------------------------------------------------


async def _start_again(fleet: WorkerFleet) -> None:
    """Like a kubelet: what ends by itself is started, and noted unless it was ordered to die."""
    while True:
        await asyncio.sleep(0.1)
        for name, child in fleet.services.items():
            status = None if name in fleet.gone else child.exit_status
            if status is not None and status >= 0:
                fleet.note("ended", process=name, status=status, words=child.last_words())
                fleet.start(name)
            elif status is not None and name in WORKERS:
                await asyncio.sleep(0.4)  # whoever killed it may start it
                if not child.is_running and name not in fleet.gone:
                    fleet.note("kill", process=name, why="by-its-key")
                    fleet.start(name)


async def _sample(fleet: WorkerFleet, folder: Path) -> None:
    """Every second the memory of each service, until cancelled."""
    with (folder / "memory.jsonl").open("wb") as memory:
        while True:
            with suppress(OSError):
                for name, size in sizes(fleet):
                    memory.write(orjson.dumps([round(time.time(), 2), name, size]) + b"\n")
            memory.flush()
            await asyncio.sleep(_SAMPLE_SECONDS)


async def _feel_store(fleet: WorkerFleet) -> None:
    """Note when the store was slow by itself: a disk or a machine that is busy, not a fault."""
    redis = Redis.from_url(fleet.valkey.url, retry=Retry(NoBackoff(), 0))
    try:
        while True:
            began = time.time()
            with suppress(RedisError, OSError):
                await cast("Any", redis.ping())
            answered = time.time()
            if answered - began > _SLOW_SECONDS:
                for phase, at in (("begin", began), ("end", answered)):
                    line = {"t": at, "kind": "fault", "fault": SLOW_STORE, "phase": phase}
                    fleet.log.append(line)
            await asyncio.sleep(_PULSE_SECONDS)
    finally:
        await redis.aclose()
