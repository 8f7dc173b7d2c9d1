"""P8, I2: whatever the order, and however fast the projector is, every last state is reconciled.

Two processes fail between any two of their steps, and runs begin there. `make scenarios` runs 200
histories of each kind, the default run four.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from redis.asyncio import Redis

from fleetbus.clusters.registry import Clusters
from fleetbus.errors import StoreError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.matching import Reason
from fleetbus.reconcile import Request
from fleetbus_proto.events import Event
from support.full import FULL
from support.rigs.intake import PODS_KEY, IntakeRig, Seen
from support.stores.snapshot import Source

Answer = TypeVar("Answer")
EU = Source(cluster="eu1")
NAMES = ("a", "b", "c")
SEEDS = range(200 if FULL else 2)

pytestmark = pytest.mark.longer


def is_web(old: Any, new: Any) -> bool:
    return (new or old)["metadata"]["labels"]["app"] == "web"


async def to_mapped(_obj: Any, request: Request, _fleet: Fleet) -> list[Request]:
    return [Request("", "eu1", request.namespace, f"mapped-{request.name}")]


WATCHES: dict[str, dict[str, Any]] = {
    "everything": {},
    "selector": {"selector": "app=web"},
    "annotations": {"annotation_selector": "app=web"},
    "predicate": {"predicate": is_web},
    "mapped": {"map": to_mapped},
    "mapped selector": {"map": to_mapped, "selector": "app=web"},
}


class Trouble:
    """A process that may stop or fail between its steps."""

    def __init__(self, rig: IntakeRig, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.chance = chance
        self.fails_at = 0
        self.steps = 0
        load, add = cast("Any", rig.intake)._load, rig.store.enqueue
        patch.setattr(rig.intake, "_load", partial(self.step, load))
        patch.setattr(rig.store, "enqueue", partial(self.step, add))

    async def do(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do something, again if it fails: nothing is acknowledged before."""
        self.steps, self.fails_at = 0, self.chance.choice((0, 0, 0, 0, 1, 2, 3, 4))
        try:
            await act()
        except StoreError:
            if self.chance.random() < 0.3:
                await self.rig.reconcile()
            await act()  # the count goes on, so it fails no more

    async def step(self, act: Callable[..., Awaitable[Answer]], *arguments: Any) -> Answer:
        """One step; it fails before or after it, or runs begin right after it."""
        self.steps += 1
        fails = self.steps == self.fails_at
        if fails and self.chance.random() < 0.5:
            raise StoreError("before")
        answer = await act(*arguments)
        if fails:
            raise StoreError("after")
        if self.chance.random() < 0.3:
            await self.rig.reconcile()
        return answer


def history(chance: random.Random) -> list[Event]:
    """Changes of a few objects, each of which comes, goes, and matches or not."""
    events: list[Event] = []
    live: set[str] = set()
    for version in range(1, 16):
        name = chance.choice(NAMES)
        app = {"app": chance.choice(("web", "db"))}
        metadata = {"labels": app, "annotations": app}
        if name in live and chance.random() < 0.3:
            live.discard(name)
            events.append(EU.deleted(name, version, metadata=metadata))
        else:
            verb = "modified" if name in live else "added"
            live.add(name)
            events.append(EU.event(verb, name, version, metadata=metadata))
    return events


@pytest.mark.parametrize("kind", WATCHES)
@pytest.mark.parametrize("first", ["projector", "controller"])
async def test_p8_every_last_state_is_reconciled_by_two_processes_in_any_order(
    redis: Redis, kind: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_histories(redis, kind, first, SEEDS, monkeypatch)


@pytest.mark.stores("redis")
@pytest.mark.parametrize("kind", ["selector", "mapped"])
async def test_p8_a_history_ends_well_on_redis_too(
    redis: Redis, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_histories(redis, kind, "controller", SEEDS[:1], monkeypatch)


async def run_histories(
    redis: Redis, kind: str, first: str, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        await redis.flushall()
        rig = IntakeRig(redis, Clusters([]))
        rig.controller.watch("v1/pods", **WATCHES[kind])
        rig.start()
        await rig.snapshot.set_up("eu1")
        processes = [
            Trouble(each_rig, random.Random(f"{seed}/{number}"), monkeypatch)
            for number, each_rig in enumerate((rig, rig.beside()))
        ]
        try:
            await deliver(processes, random.Random(seed), is_projector_first=first == "projector")
            check(rig, history(random.Random(seed)), kind, seed)
        finally:
            await rig.queue.aclose()


async def deliver(
    processes: Sequence[Trouble], chance: random.Random, *, is_projector_first: bool
) -> None:
    """Every event to one of two processes, late, early or twice; runs end well or badly."""
    events = history(chance)
    rig = processes[0].rig
    if is_projector_first:
        await rig.snapshot.apply(*events)
    queue = sorted(events, key=lambda event: int(event.resource_version) + 4 * chance.random())
    while queue:
        batches: list[list[Event]] = [[], []]
        for _ in range(chance.randint(1, 4)):
            if queue:
                event = queue.pop(0)
                chance.choice(batches).append(event)
                if chance.random() < 0.2:
                    queue.insert(chance.randint(0, len(queue)), event)  # delivered once more
        for process, batch in zip(processes, batches, strict=True):
            await rig.snapshot.apply(*batch)
            process.rig.store.recent.note(await standing(rig, batch))
        takes = [
            process.do(partial(process.rig.intake.take, batch))
            for process, batch in zip(processes, batches, strict=True)
        ]
        await asyncio.gather(*takes)
        if chance.random() < 0.6:
            await rig.reconcile(is_success=chance.random() < 0.8)
        if chance.random() < 0.1:
            reason = chance.choice((Reason.RESYNC, Reason.GAP))
            await processes[1].do(partial(processes[1].rig.full.run, cluster="eu1", reason=reason))
    await rig.reconcile()


async def standing(rig: IntakeRig, batch: Sequence[Event]) -> list[Event]:
    """The events of a batch that the snapshot has now; the next batch may replace them."""
    names = [(event.namespace, event.name) for event in batch]
    versions = await rig.snapshot.reader.versions("eu1", PODS_KEY, names)
    return [
        event
        for event, name in zip(batch, names, strict=True)
        if (state := versions.get(name)) and state.resource_version == event.resource_version
    ]


def check(rig: IntakeRig, events: list[Event], kind: str, seed: int) -> None:
    for name in NAMES:
        states = [event for event in events if event.name == name]
        if not states:
            continue
        last = states[-1]
        place = f"eu1/prod/{'mapped-' if 'mapped' in kind else ''}{name}"
        runs = [run for run in rig.runs if run.place == place]
        context = f"{kind}, seed {seed}, {name}: {runs}"
        if "mapped" in kind:
            assert runs or not any(map(matches, states)) or "selector" in kind, context
            continue
        check_own(runs, states, last, kind, context)


def check_own(runs: list[Seen], states: list[Event], last: Event, kind: str, context: str) -> None:
    version = "" if last.verb.value == "deleted" else last.resource_version
    if version and (kind == "everything" or matches(last)):
        assert runs, context
        assert (runs[-1].version, runs[-1].left) == (version, False), context
    elif any(run.version and not run.left for run in runs):
        # It was reconciled as one that matches: it knows that it is gone, or has left.
        assert runs[-1].left or not runs[-1].version, context
    assert kind != "everything" or runs, f"{context} {states}"


def matches(event: Event) -> bool:
    return event.object is not None and b'"app":"web"' in event.object
