"""One seed: start everything, break it under load, let it settle, write down what there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import orjson

from faults.rig.fleet import Fleet, running_fleet
from faults.rig.recorder import (
    StreamReader,
    read_snapshot,
    sample,
    tapped,
    write_log,
    write_meta,
    write_stream,
)
from faults.rig.settings import STORE_LOST, WATCHERS
from faults.watchers.cluster_faults import CLUSTER_FAULTS, CLUSTER_LOSSES
from faults.watchers.faults import FAULTS, KILLS, Fault, Kill, Scene, finish
from faults.watchers.losses import LOSS_OF_STORE, LOSSES
from faults.watchers.records import places_of
from faults.watchers.state_checks import Fold, differences
from fleetbus.bus.connection import connected
from fleetbus.errors import BusError
from fleetbus_devfleet.processes.children import ChildError

_SYNC_SECONDS: Final = 60
_SETTLE_SECONDS: Final = 240
"""Long enough to see whether it comes late or never."""
_POLL_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.2
_FAULTS_AT_ONCE: Final = 3
_STAYS_SECONDS: Final = 1.0
"""A state that agrees for so long has settled: a late sweep would have shown by then."""

Document = dict[str, dict[str, dict[str, list[str]]]]
"""Cluster → resource key → object key → (uid, resourceVersion)."""
Weighted = TypeVar("Weighted", Fault, Kill)


@dataclass(frozen=True)
class Plan:
    """The plan of one seed.

    Attributes:
        seed: of the load and of every choice.
        kills: how many watchers are killed under load.
        rate: writes per second.
        losses: how many stores are lost afterwards, one after the other.
        mutation: a rule of the product that is disabled, for checking the checker.
        pace: seconds between two kills, on average.
        kinds: only these faults; empty for all.
        ends: 0 leaves out that the last changes are in doubt.
        servers: of NATS; three are a cluster, of which one or two are broken at a time.
    """

    seed: int
    kills: int = 100
    rate: float = 1_000.0
    losses: int = 4
    mutation: str = ""
    pace: float = 1.6
    kinds: tuple[str, ...] = ()
    ends: int = 1
    servers: int = 1


async def run(plan: Plan, folder: Path) -> AsyncGenerator[Path]:
    """Run a seed; yields the folder of each phase when it is recorded."""
    async with (
        running_fleet(folder, plan.seed, mutation=plan.mutation, servers=plan.servers) as fleet,
        tapped(fleet, folder) as taps,
        beside(sample=sample(fleet, folder), guard=_restart_ended(fleet)),
    ):
        scene = Scene(fleet, Random(f"faults/{plan.seed}"), taps, plan.rate)
        await _sync(fleet, folder)
        yield await _phase(fleet, plan, folder / "kills", _break_under_load(scene, plan))
        for number, kind in enumerate(_losses_of(plan), 1):
            yield await _phase(fleet, plan, folder / f"loss-{number}", _lose(scene, kind))


@asynccontextmanager
async def beside(**bodies: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these as long as the block lasts; what one raises is raised at the end."""
    tasks = [asyncio.create_task(body, name=name) for name, body in bodies.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _losses_of(plan: Plan) -> Sequence[Fault]:
    """Each kind once, then by the dice; that of the store while the stream is whole."""
    random = Random(f"losses/{plan.seed}")
    losses = LOSSES if plan.servers == 1 else CLUSTER_LOSSES
    chosen = [LOSS_OF_STORE, *random.sample(losses, len(losses))]
    chosen += _choose(random, losses, max(0, plan.losses - len(chosen)))
    return chosen[: plan.losses]


def _choose(random: Random, kinds: Sequence[Weighted], count: int) -> list[Weighted]:
    return random.choices(kinds, [kind.weight for kind in kinds], k=count)


# --- a phase ----------------------------------------------------------------------------------


async def _phase(
    fleet: Fleet, plan: Plan, folder: Path, breaking: Coroutine[Any, Any, bool]
) -> Path:
    folder.mkdir()
    del fleet.log[:]
    before, begun = await fleet.load(plan.rate), time.time()
    try:
        lost = await breaking
    finally:
        written = await fleet.load(0)
    stopped = time.time()
    await _mend(fleet)
    is_lost = lost or _was_lost_before(folder)
    async with connected(fleet.nats.url, name="settled") as bus:
        state = StreamState(StreamReader(bus), believes_epochs=is_lost)
        settled = await _settle(fleet, folder, state)
    count = await write_stream(fleet, folder / "stream.jsonl")
    write_meta(
        folder,
        plan,
        began=begun,
        stopped=stopped,
        writes=sum(written.values()) - sum(before.values()),
        settled=settled,
        messages=count,
        stream_lost=is_lost,
    )
    write_log(fleet, folder / "log.jsonl")
    return folder


def _was_lost_before(folder: Path) -> bool:
    others = (orjson.loads(path.read_bytes()) for path in folder.parent.glob("*/meta.json"))
    return any(meta["stream_lost"] for meta in others)


async def _mend(fleet: Fleet) -> None:
    """Nothing is broken any more."""
    for cluster in fleet.clusters:
        await fleet.admin.clear_faults(cluster)
        await fleet.admin.heal(cluster)
    for link in fleet.links.values():
        link.heal()
    for name in fleet.services:
        fleet.start(name)


async def _sync(fleet: Fleet, folder: Path) -> None:
    """Wait until the snapshot has the first lists.

    Raises:
        ChildError: it does not get them, or a service ends; that is no fault's doing.
    """
    deadline = time.monotonic() + _SYNC_SECONDS
    while not await _agree(fleet, folder / "first.json", 0):
        for line in fleet.log:
            if line["kind"] == "ended":
                raise ChildError(f"{line['process']} ended before any fault: {line['words']}")
        if time.monotonic() > deadline:
            raise ChildError(f"no first sync within {_SYNC_SECONDS} s; the logs are in {folder}")
        await asyncio.sleep(_POLL_SECONDS)


class StreamState:
    """The state of the objects according to the stream so far.

    Args:
        reader: the stream; by now no message of it is lost any more.
        believes_epochs: as `state_checks.Fold`, which checks the records by the same rules.
    """

    def __init__(self, reader: StreamReader, *, believes_epochs: bool) -> None:
        self._reader = reader
        self._fold = Fold(believes_epochs=believes_epochs)

    async def agrees(self, final: Document) -> bool:
        """Whether the last state per object is that of the clusters; False while NATS is silent."""
        try:
            while messages := await self._reader.read():
                for message in messages:
                    self._fold.take(message)
        except BusError:
            return False
        return not any(differences("stream", places_of(final), self._fold.live()))


async def _settle(fleet: Fleet, folder: Path, state: StreamState) -> float:
    """Wait until clusters, snapshot and stream agree; answers how long it took.

    Clusters and snapshot are written down. The stream is waited for as well: after its loss the
    snapshot may be right before the watchers know, and before they have listed everything again.
    """
    begun = time.monotonic()
    took = 0.0
    while took < _SETTLE_SECONDS:
        agrees = await _agree(fleet, folder / "final.json", _SETTLE_SECONDS - took, state)
        took = time.monotonic() - begun
        await asyncio.sleep(_STAYS_SECONDS)
        if agrees and await _agree(fleet, folder / "final.json", 0, state):
            break
    snapshot = await read_snapshot(fleet)
    (folder / "snapshot.json").write_bytes(orjson.dumps(snapshot))
    return took


async def _agree(fleet: Fleet, path: Path, within: float, state: StreamState | None = None) -> bool:
    deadline = time.monotonic() + within
    while True:
        await fleet.dump(path)
        final = orjson.loads(path.read_bytes())
        is_kept = orjson.loads(orjson.dumps(await read_snapshot(fleet))) == final
        if is_kept and (state is None or await state.agrees(final)):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)


async def _restart_ended(fleet: Fleet) -> None:
    """A service that ends by itself is noted, and started again like by a kubelet."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for name, child in fleet.services.items():
            if child.exit_status is not None and child.exit_status >= 0:
                fleet.note("ended", process=name, words=child.last_words())
                fleet.start(name)


# --- what is broken ---------------------------------------------------------------------------


async def _break_under_load(scene: Scene, plan: Plan) -> bool:
    """Kill watchers so many times, with other faults beside; answers whether a stream was lost."""
    faults = FAULTS if plan.servers == 1 else CLUSTER_FAULTS
    kinds = [f for f in faults if not plan.kinds or f.name in plan.kinds]
    async with beside(faults=_break_beside(scene, kinds, plan)):
        random = Random(f"kills/{plan.seed}")
        # One of each kind first, so that a short run has them too.
        chosen = random.sample(KILLS, len(KILLS))
        chosen += _choose(random, KILLS, max(0, plan.kills - len(chosen)))
        for kill in chosen[: plan.kills]:
            await _kill(scene, kill, random.choice(list(WATCHERS)), plan.pace)
    if plan.servers == 1 and not scene.fleet.nats_server.child.is_running:
        await scene.fleet.nats_server.restart()  # the fault that killed it was cancelled meanwhile
    if plan.ends:
        await finish(scene)
    return False


async def _kill(scene: Scene, kill: Kill, watcher: str, pace: float) -> None:
    begun = time.monotonic()
    try:
        await kill.wait(scene, watcher)
    finally:
        scene.fleet.kill(watcher, kill.name)
        scene.fleet.links[watcher].heal()
    await scene.pause(0, min(1.0, pace))
    scene.fleet.start(watcher)
    # It gets some time to live, or nothing would ever be published.
    await asyncio.sleep(max(0.1, pace - (time.monotonic() - begun)))


async def _break_beside(scene: Scene, kinds: Sequence[Fault], plan: Plan) -> None:
    """Faults all the time, some at once; those that run are ended and undone when cancelled."""
    random = Random(f"beside/{plan.seed}")
    chosen = random.sample(kinds, len(kinds))
    room = asyncio.Semaphore(_FAULTS_AT_ONCE)
    async with asyncio.TaskGroup() as group:

        async def act(fault: Fault) -> None:
            try:
                await fault.act(scene)
            finally:
                room.release()

        while True:
            fault = chosen.pop() if chosen else _choose(random, kinds, 1)[0]
            await room.acquire()
            group.create_task(act(fault), name=fault.name)
            await scene.pause(0.1, 1.0)


async def _lose(scene: Scene, loss: Fault) -> bool:
    await scene.pause(1, 3)
    await loss.act(scene)
    await scene.pause(3, 5)
    return loss.name not in (STORE_LOST, "bucket-lost", "etcd-restored")
