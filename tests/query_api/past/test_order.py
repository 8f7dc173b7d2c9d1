"""The past is what the snapshot had, in whatever order events came (rules P2, P4, A9).

Watchers follow each other, miss events, and list anew; their sweeps publish late. Or a watcher that
was replaced goes on publishing, its list, too, while the next one lists and watches.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetbus.run.current import ObjectRef
from fleetbus_proto.events import EpochEnd, Event, Rank
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_newer
from support.full import FULL
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from datetime import datetime

    from fleetbus.snapshot import CompletedEpoch
    from fleetbus_query_api.past.states import PastState
    from support.stores.recorded_past import RecordedPast

SEEDS = range(60) if FULL else (0, 1, 7, 47, 99, 117)
"""A late deletion of a sweep is the last one in 7, 47, 99 and 117."""
OVERLAPS = (*range(60), 2028) if FULL else (*range(6), 2028)
"""A hidden deletion shows that a creation came late, too, in 2028."""
NAMES = "ab"


def changes(dice: random.Random) -> list[tuple[int, str, str, str]]:
    """The changes in a cluster: version, name, verb and UID."""
    version, living = 10, dict[str, str]()
    history: list[tuple[int, str, str, str]] = []
    for _ in range(dice.randrange(8, 20)):
        version += dice.randrange(1, 3)
        name = dice.choice(NAMES)
        verb = "added" if name not in living else dice.choice(("modified", "deleted"))
        uid = living.setdefault(name, f"u{version}")
        if verb == "deleted":
            del living[name]
        history.append((version, name, verb, uid))
    return history


def sessions(dice: random.Random, resource: str) -> list[Event | EpochEnd]:
    """The messages of consecutive watchers: lists, and some of the events after each."""
    history = changes(dice)
    cuts = sorted(dice.sample(range(len(history) + 1), 3))
    messages: list[Event | EpochEnd] = []
    for number, cut in enumerate(cuts):
        following = cuts[number + 1] if number + 1 < len(cuts) else len(history)
        end = dice.randrange(cut, following + 1)
        messages += session(history, cut, end, resource, number + 1)
    return messages


def overlapping(dice: random.Random, resource: str) -> list[Event | EpochEnd]:
    """The messages of watchers that do not know of each other, in any order between them.

    Two of them also list at the same time; of three, the lists follow each other.
    """
    history = changes(dice)
    cuts = sorted(dice.sample(range(len(history) + 1), dice.choice((2, 3))))
    queues = [
        session(history, cut, dice.randrange(cut, len(history) + 1), resource, number + 1)
        for number, cut in enumerate(cuts)
    ]
    merged: list[Event | EpochEnd] = []
    while queues := [queue for queue in queues if queue]:
        queue = dice.choice(queues)
        if len(cuts) > 2:
            queue = next(other for other in queues if other is queue or is_listing(other))
        merged += [queue.pop(0) for _ in range(min(len(queue), dice.randrange(1, 5)))]
    return merged


def is_listing(queue: list[Event | EpochEnd]) -> bool:
    """Whether the end of the list of this watcher is still to come."""
    return any(isinstance(message, EpochEnd) for message in queue)


def session(
    history: list[tuple[int, str, str, str]], cut: int, end: int, resource: str, number: int
) -> list[Event | EpochEnd]:
    """The messages of one watcher, which lists after some changes and sees others after that."""
    version = history[cut - 1][0] if cut else 10
    source = Source(resource=resource, rank=(version, number))
    present: dict[str, tuple[int, str]] = {}
    for at, name, verb, uid in history[:cut]:
        if verb == "deleted":
            del present[name]
        else:
            present[name] = at, uid
    messages: list[Event | EpochEnd] = []
    messages += [source.listed(name, at, uid=uid) for name, (at, uid) in present.items()]
    messages.append(source.end(len(present)))
    messages += [source.event(verb, name, at, uid=uid) for at, name, verb, uid in history[cut:end]]
    return messages


async def compare(past: RecordedPast, seed: int, *, overlap: bool = False) -> None:
    dice, resource = random.Random(seed), f"r{seed}"
    todo, sweeps = (overlapping if overlap else sessions)(dice, resource), list[Event]()
    refs = [ObjectRef("eu1", f"core/{resource}", "prod", name) for name in NAMES]
    claims = {message.epoch.id: message.epoch for message in todo}
    begun, hidden = set[int](), set[int]()
    instants: list[tuple[datetime, dict[ObjectRef, bytes]]] = []
    while todo or sweeps:
        if sweeps and (not todo or dice.random() < 0.2):
            await past.record(sweeps.pop(0))
        else:
            message = todo.pop(0)
            await claim(past, claims, message)
            message = msgspec.structs.replace(message, epoch=claims[message.epoch.id])
            if isinstance(message, EpochEnd):
                begun.discard(message.epoch.id)
                hidden.discard(message.epoch.id)
                state = await past.record_end(message)
                if state.complete:
                    sweeps += await swept(past, state.epoch)
            else:
                if message.verb is Verb.LISTED:
                    begun.add(message.epoch.id)
                    hidden |= {epoch for epoch in begun if epoch > message.epoch.id}
                await past.record(message)
        if hidden:  # items of a list in progress, by those of an older one
            continue
        instants.append((await past.now(), bodies(await past.states.present(refs))))
        assert bodies(await past.states.at(refs, instants[-1][0])) == instants[-1][1], (
            f"seed {seed}"
        )
    for time, then in instants:
        assert bodies(await past.states.at(refs, time)) == then, f"seed {seed}, asked later"


def bodies(states: dict[ObjectRef, PastState]) -> dict[ObjectRef, bytes]:
    return {ref: state.body for ref, state in states.items()}


async def claim(past: RecordedPast, claims: dict[int, Rank], message: Event | EpochEnd) -> None:
    """Claim the epochs that have been before a message, each with an id that is a time (rule W7).

    A list has everything that was published before its epoch was claimed.
    """
    published = message.resource_version if isinstance(message, Event) else ""
    for number, rank in sorted(claims.items()):
        is_before = number <= message.epoch.id or is_newer(published, rank.resource_version)
        if is_before and rank.id == number:
            now = round((await past.now()).timestamp() * 1000)
            last = max((one.id for one in claims.values()), default=0)
            claims[number] = Rank(rank.resource_version, max(now, last + 1))


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


@pytest.mark.parametrize("seed", OVERLAPS)
async def test_p4_a9_the_past_is_what_the_snapshot_had_while_watchers_overlap(
    past: RecordedPast, seed: int
):
    await compare(past, seed, overlap=True)
