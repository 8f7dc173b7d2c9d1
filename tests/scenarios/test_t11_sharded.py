"""T11: several replicas of one reconciler share its work, key by key, and replace each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus_proto import codec, headers
from fleetbus_proto.events import EpochEnd, Event
from support.eventually import eventually
from support.full import FULL
from support.processes.programs import module
from support.rigs.fleet import Rig
from support.rigs.projector import subject_of
from support.rigs.scenario import MAPS, WITHIN, access
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

OpenRig = Callable[..., Awaitable[Rig]]
KEYS = 50
PER_SECOND = 100
"""One replica alone could do two thirds of them."""
LOAD = timedelta(seconds=10 if FULL else 1)
PERIOD = timedelta(seconds=2 if FULL else 0.4)
OBSERVED = timedelta(seconds=60 if FULL else 1.6)
LEASE_SECONDS = 15.0 if FULL else 2.0


@dataclass
class Notes:
    """The runs of all replicas in this process."""

    runs: list[tuple[str, Request, float]] = field(default_factory=list[tuple[str, Request, float]])
    seen: dict[str, str] = field(default_factory=dict[str, str])
    _running: set[Request] = field(default_factory=set[Request])

    def replica(self, name: str) -> Controller:
        controller = Controller("sharded", concurrency=1)
        controller.watch(MAPS, namespaces=["default"])

        @controller.reconcile
        async def note(request: Request, fleet: Fleet) -> Result | None:
            assert request not in self._running, "one key, two runs at a time"
            self._running.add(request)
            try:
                config_map = await fleet.cluster(request.cluster).get(MAPS, "default", request.name)
                data: dict[str, str] = (config_map or {}).get("data") or {}
                self.runs.append((name, request, time.monotonic()))
                await asyncio.sleep(0.015)  # a reconcile takes its time
                self.seen[request.name] = data.get("turn", "")
            finally:
                self._running.discard(request)
            return Result(requeue_after=PERIOD) if request.name.startswith("periodic") else None

        return controller

    def shares(self, since: float = 0) -> Counter[str]:
        return Counter(name for name, _, at in self.runs if at >= since)


async def change(rig: Rig, within: timedelta) -> dict[str, str]:
    """100 changes a second over 50 keys of one cluster; the last turn of each."""
    turns: dict[str, str] = {}
    begun = time.monotonic()
    for turn in count():
        ahead = begun + turn / PER_SECOND - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)  # the pace of the load
        if time.monotonic() - begun > within.total_seconds():
            return turns
        name = f"o{turn % KEYS}"
        rig.clusters["zoo"].patch(MAPS, "default", name, {"data": {"turn": str(turn)}})
        turns[name] = str(turn)
    raise AssertionError


@pytest.mark.full  # CI runs the cut of `make faults-workers`, and the example has a test
async def test_t11_replicas_share_one_cluster_take_over_and_grow_without_doubling(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("zoo", resources=(MAPS,))
    names = [*(f"o{n}" for n in range(KEYS)), *(f"periodic{n}" for n in range(3))]
    for name in names:
        rig.clusters["zoo"].create(MAPS, {"metadata": {"name": name}}, "default")
    notes = Notes()
    rig.start_reconciler()
    for name in ("r-0", "r-1"):
        rig.start_reconciler(notes.replica(name), name=name, projector=False)
    rig.start_watcher("zoo")
    await eventually(lambda: notes.seen.keys() >= set(names), WITHIN)

    # 1: each does at least 30 % of the work of a single cluster.
    began = time.monotonic()
    turns = await change(rig, LOAD)
    await eventually(lambda: turns.items() <= notes.seen.items(), WITHIN)
    shares = notes.shares(began)
    assert min(shares["r-0"], shares["r-1"]) >= 0.3 * shares.total(), shares

    # 2: one stops politely under load: the other takes over everything, nothing is lost.
    changing = asyncio.create_task(change(rig, LOAD))
    await asyncio.sleep(LOAD.total_seconds() / 4)  # in the middle of the load
    await rig.stop("r-1")
    stopped = time.monotonic()
    turns = await changing
    await eventually(lambda: turns.items() <= notes.seen.items(), WITHIN)
    assert notes.shares(stopped)["r-1"] == 0

    # 5: a new one does its part; what runs periodically stays single.
    grown = time.monotonic()
    for name in ("r-2", "r-3"):
        rig.start_reconciler(notes.replica(name), name=name, projector=False)
    changing = asyncio.create_task(change(rig, OBSERVED))
    turns = await changing
    await eventually(lambda: turns.items() <= notes.seen.items(), WITHIN)
    shares = notes.shares(grown)
    assert min(shares["r-2"], shares["r-3"]) >= 0.1 * shares.total(), shares
    for number in range(3):
        at = [at for _, request, at in notes.runs if request.name == f"periodic{number}"]
        at = [moment for moment in at if moment >= grown]
        assert len(at) <= (at[-1] - at[0]) / PERIOD.total_seconds() + 1.5, "a timer runs twice"


CLUSTERS = 1000 if FULL else 30
EVENTS_PER_SECOND = 200
SPAN = timedelta(seconds=60 if FULL else 0.8)


async def publish(bus: Bus, *messages: Event | EpochEnd) -> None:
    for message in messages:
        subject, body = subject_of(message), codec.encode(message)
        answer = await bus.request(subject, body, headers=headers.build(message, MESSAGE_KEY))
        assert b'"error"' not in answer.data, answer.data


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [3, 5, 9] if FULL else [3])
async def test_t11_the_changes_of_many_clusters_are_spread_evenly_over_the_replicas(
    open_rig: OpenRig, replicas: int
) -> None:
    rig = await open_rig("zoo", resources=(MAPS,))
    names = [f"c{number}" for number in range(CLUSTERS)]
    rig.kubeconfig.write_text(json.dumps(access(rig, **dict.fromkeys(names, "zoo"))))
    rig.start_reconciler()

    async def are_registered() -> bool:
        return {record.name for record in await rig.reader.clusters()} >= set(names)

    await eventually(are_registered, timedelta(seconds=120))
    ran: Counter[str] = Counter()
    # As long as a run takes, they are all needed: who is idle is woken by chance.
    seconds = 0.9 * replicas / EVENTS_PER_SECOND
    for name in (f"r-{number}" for number in range(replicas)):
        controller = Controller("sharded", concurrency=1)
        controller.watch(MAPS)

        @controller.reconcile
        async def work(_request: Request, _fleet: Fleet, name: str = name) -> None:
            await asyncio.sleep(seconds)  # a reconcile takes its time
            ran[name] += 1

        rig.start_reconciler(controller, name=name, projector=False)
    sources = [Source(cluster=name, resource="configmaps") for name in names]
    async with connected(rig.shared.nats_url, name="publisher") as bus:
        # In full nine replicas look at a thousand clusters first, all in this process.
        await rig.quiet("sharded", timedelta(seconds=120))
        await publish(bus, *(source.end(0) for source in sources))
        total = int(EVENTS_PER_SECOND * SPAN.total_seconds())
        begun = time.monotonic()
        for number in range(total):
            ahead = begun + number / EVENTS_PER_SECOND - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)  # the pace of the load
            source = sources[number % CLUSTERS]
            await publish(bus, source.added(f"o{number}", 10 + number, namespace="default"))
    # How long it takes says nothing: all replicas share one process here.
    await eventually(lambda: ran.total() >= total, timedelta(seconds=240))
    # More than that where a replica that begins enqueues all once more (rule P12).
    assert max(ran.values()) <= 1.3 * ran.total() / replicas, ran


# --- replicas that die, or stand still ------------------------------------------------------------


@dataclass
class Replicas:
    """Processes, and the notes that they take."""

    rig: Rig
    folder: pathlib.Path
    processes: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )

    async def start(self, name: str) -> None:
        options = {
            "replica": name,
            "notes": str(self.folder / "notes.jsonl"),
            "kubeconfig": str(self.rig.kubeconfig),
            "nats_url": self.rig.shared.nats_url,
            "redis_url": self.rig.shared.redis_url,
            "lease_seconds": LEASE_SECONDS,
        }
        self.processes[name] = await asyncio.create_subprocess_exec(
            *module("scripts.replica"),
            env=os.environ | {"REPLICA_OPTIONS": json.dumps(options)},
        )

    def notes(self, **fields: Any) -> list[dict[str, Any]]:
        path = self.folder / "notes.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        all_notes: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [note for note in all_notes if fields.items() <= note.items()]

    async def give(self, name: str, seconds: float) -> None:
        """An object that takes so long."""
        obj = {"metadata": {"name": name}, "data": {"seconds": str(seconds)}}
        self.rig.clusters["zoo"].create(MAPS, obj, "default")

    def is_spread(self) -> bool:
        """Whether all replicas work; gives them something to do."""
        zoo = self.rig.clusters["zoo"]
        turn = {"data": {"turn": str(time.monotonic())}}
        for name in (f"warm{number}" for number in range(6)):
            if zoo.get(MAPS, "default", name) is None:
                zoo.create(MAPS, {"metadata": {"name": name}}, "default")
            zoo.patch(MAPS, "default", name, turn)
        return {note["replica"] for note in self.notes()} == set(self.processes)

    def starters(self, name: str, since: float) -> set[str]:
        """Who has begun to work on an object since then."""
        started = self.notes(name=name, what="start")
        return {str(note["replica"]) for note in started if note["at"] >= since}

    def was_cut_off(self, replica: str, name: str) -> bool:
        """Whether a replica ended its run of an object without doing what it was for."""
        return bool(self.notes(replica=replica, name=name, what="cut"))

    def holder(self, name: str) -> str:
        """Who works on an object now; empty for nobody."""
        notes = self.notes(name=name)
        return str(notes[-1]["replica"]) if notes and notes[-1]["what"] == "start" else ""


@asynccontextmanager
async def replicas(rig: Rig, folder: pathlib.Path, *names: str) -> AsyncGenerator[Replicas]:
    started = Replicas(rig, folder)
    try:
        for name in names:
            await started.start(name)
        yield started
    finally:
        for process in started.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.mark.timeout(240)  # three processes are loaded
@pytest.mark.full  # CI runs the cut of `make faults-workers`
async def test_t11_what_a_dead_or_frozen_replica_held_is_done_again_once_and_it_writes_no_more(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("zoo", resources=(MAPS,))
    rig.start_reconciler()
    rig.start_watcher("zoo")
    names = ("lion", "bird", "monkey", "mouse", "fish")  # one more than a replica works on at once
    async with replicas(rig, tmp_path, "r-0", "r-1", "r-2") as running:
        await eventually(running.is_spread, timedelta(seconds=60))
        for name in names:
            # The work outlasts the lease: whoever holds it renews it.
            await running.give(name, 1.5 * LEASE_SECONDS)
        await eventually(lambda: all(running.holder(name) for name in names), WITHIN)
        holders = {name: running.holder(name) for name in names}
        dead, frozen = sorted(set(holders.values()), reverse=True)[:2]
        running.processes[dead].kill()
        os.kill(running.processes[frozen].pid, signal.SIGSTOP)
        gone = time.time()
        taken = {name: of for name, of in holders.items() if of in (dead, frozen)}

        def are_redone() -> bool:
            return all(running.starters(name, gone) - {dead, frozen} for name in taken)

        await eventually(are_redone, timedelta(seconds=20 + 2 * LEASE_SECONDS))
        os.kill(running.processes[frozen].pid, signal.SIGCONT)
        done = WITHIN + timedelta(seconds=4 * LEASE_SECONDS)
        await eventually(lambda: all(_by(rig, name) for name in names), done)
        await rig.quiet("sharded", WITHIN)
        names_of_frozen = [name for name, of in taken.items() if of == frozen]
        await eventually(
            lambda: all(running.was_cut_off(frozen, name) for name in names_of_frozen), WITHIN
        )
    for name, former in taken.items():
        assert _by(rig, name) != former, "a former owner wrote"
        patches = [r for r in rig.clusters["zoo"].requests if r.verb == "patch" and name in r.path]
        assert len(patches) == 1, f"{name} was written {len(patches)} times"


def _by(rig: Rig, name: str) -> str:
    config_map = rig.clusters["zoo"].get(MAPS, "default", name)
    return str(config_map["data"].get("by", "")) if config_map else ""
