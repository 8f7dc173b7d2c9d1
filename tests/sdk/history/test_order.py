"""The state of the past is the one that the snapshot had, in whatever order events came (P2, A9).

Watchers follow each other, miss events, and list anew; their sweeps publish late.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from fleetbus.run.current import ObjectRef
from fleetbus_proto.events import EpochEnd, Event
from support.full import FULL
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from fleetbus.snapshot import CompletedEpoch
    from support.stores.recorded_past import RecordedPast

SEEDS = range(60) if FULL else (*range(8), 47, 99, 117)
"""A late deletion of a sweep is the last one in 7, 47, 99 and 117."""
NAMES = "ab"


def changes(dice: random.Random) -> list[tuple[int, str, str, str]]:
    """The changes in a cluster: version, name, verb and UID."""
    version, living = 10, dict[str, str]()
    found: list[tuple[int, str, str, str]] = []
    for _ in range(dice.randrange(8, 20)):
        version += dice.randrange(1, 3)
        name = dice.choice(NAMES)
        verb = "added" if name not in living else dice.choice(("modified", "deleted"))
        uid = living.setdefault(name, f"u{version}")
        if verb == "deleted":
            del living[name]
        found.append((version, name, verb, uid))
    return found


def sessions(dice: random.Random, resource: str) -> list[Event | EpochEnd]:
    """The messages of consecutive watchers: lists, and some of the events after each."""
    history = changes(dice)
    cuts = sorted(dice.sample(range(len(history) + 1), 3))
    found: list[Event | EpochEnd] = []
    for number, cut in enumerate(cuts):
        version = history[cut - 1][0] if cut else 10
        source = Source(resource=resource, rank=(version, number + 1))
        present: dict[str, tuple[int, str]] = {}
        for at, name, verb, uid in history[:cut]:
            if verb == "deleted":
                del present[name]
            else:
                present[name] = at, uid
        found += [source.listed(name, at, uid=uid) for name, (at, uid) in present.items()]
        found.append(source.end(len(present)))
        following = cuts[number + 1] if number + 1 < len(cuts) else len(history)
        for at, name, verb, uid in history[cut : dice.randrange(cut, following + 1)]:
            found.append(source.event(verb, name, at, uid=uid))
    return found


async def compare(past: RecordedPast, seed: int) -> None:
    dice, resource = random.Random(seed), f"r{seed}"
    todo, sweeps = sessions(dice, resource), list[Event]()
    refs = [ObjectRef("eu1", f"core/{resource}", "prod", name) for name in NAMES]
    while todo or sweeps:
        if sweeps and (not todo or dice.random() < 0.2):
            await past.record(sweeps.pop(0))
        elif isinstance(message := todo.pop(0), EpochEnd):
            state = await past.snapshot.writer.end_epoch(message)
            if state.complete:
                sweeps += await swept(past, state.epoch)
            continue
        else:
            await past.record(message)
        then = await past.states.at(refs, await past.now())
        now = await past.states.present(refs)
        assert {ref: one.body for ref, one in then.items()} == {
            ref: one.body for ref, one in now.items()
        }, f"seed {seed}"


async def swept(past: RecordedPast, completed: CompletedEpoch) -> list[Event]:
    """The deletions that the sweep after a list publishes."""
    rank = int(completed.rank.resource_version), completed.rank.id
    source = Source(resource=completed.resource, rank=rank)
    return [
        source.deleted(name, rank[0], final_state_unknown=True)
        for name in await past.snapshot.sweep(completed)
    ]


@pytest.mark.parametrize("seed", SEEDS)
async def test_p2_the_past_is_what_the_snapshot_had(past: RecordedPast, seed: int):
    await compare(past, seed)
