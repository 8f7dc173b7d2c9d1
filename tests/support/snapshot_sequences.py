"""Random sequences of messages, applied to a real store and to the model side by side.

Every lane is one resource with a short sequence of its own; lanes share the batches. Messages are
permuted, duplicated and dropped, contradict each other, come from zombies of older incarnations,
ranks and scopes, and their versions cross 10, 2^53 and 2^100.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snapshot_model import SnapshotModel
from snapshot_rig import Snapshot, Source, body_of

from fleetbus.snapshot.audit import Audits, PageResult
from fleetbus.snapshot.guard import read_guard
from fleetbus_proto import keys
from fleetbus_proto.events import AuditPage, EpochEnd, Event

if TYPE_CHECKING:
    from redis.asyncio import Redis

STEPS = 32


@dataclass(frozen=True)
class Audit:
    """What an API server tells that agrees with the snapshot, mostly."""

    source: Source
    version: int
    left_out: str

    def page_of(self, model: SnapshotModel) -> AuditPage:
        held = {
            name: (row.uid, row.version)
            for name, row in model.rows.items()
            if row.state == "L" and row.version <= self.version and name != self.left_out
        }
        return self.source.audit(self.version, 1, held)


Message = Event | EpochEnd | Audit | str


@dataclass
class Lane:
    """One resource with its messages still to come."""

    seed: int
    resource: str
    todo: list[Message]
    model: SnapshotModel = field(default_factory=SnapshotModel)

    @property
    def key(self) -> str:
        return f"core/{self.resource}"

    def next_events(self, dice: random.Random) -> list[Event]:
        """Some events up to the next message of another kind."""
        taken: list[Event] = []
        for message in self.todo[: dice.randrange(1, 9)]:
            if not isinstance(message, Event):
                break
            taken.append(message)
        del self.todo[: len(taken)]
        return taken


def make_lane(seed: int) -> Lane:
    dice = random.Random(seed)
    resource = f"r{seed}"
    base = dice.choice((0, 6, 95, 2**53 - 4, 2**100 - 4))
    sources = [
        Source(
            resource=resource,
            incarnation=dice.choice((1, 1, 1, 2)),
            rank=(base + dice.randrange(1, 10), dice.randrange(1, 4)),
            scope=dice.choice(("", "", "", "x")),
        )
        for _ in range(4)
    ]
    pool: list[Message] = [_random_event(dice, dice.choice(sources), base) for _ in range(26)]
    pool += [_random_end(dice, source, pool) for source in sources]
    pool += ["collect", dice.choice(("collect", "drop:x", "drop:"))]
    pool += [_random_audit(dice, dice.choice(sources), base) for _ in range(2)]
    return Lane(seed, resource, dice.choices(pool, k=STEPS))


def _random_event(dice: random.Random, source: Source, base: int) -> Event:
    name = dice.choice("abcd")
    version = base + dice.randrange(1, 10)
    verb = dice.choice(("added", "modified", "deleted", "listed", "listed", "listed"))
    labels = {"color": dice.choice(("red", "blue"))}
    owners = [{"uid": f"owner-{source.resource}-{dice.randrange(2)}"}]
    body = body_of(name, version, labels=labels, ownerReferences=owners)
    return source.event(
        verb,
        name,
        version,
        uid=f"u{dice.randrange(3)}",
        body=None if dice.random() < 0.1 else body,
        left_selection=verb == "deleted" and dice.random() < 0.3,
    )


def _random_end(dice: random.Random, source: Source, pool: list[Message]) -> EpochEnd:
    listed = {
        message.name
        for message in pool
        if isinstance(message, Event)
        and message.verb == "listed"
        and (message.epoch.resource_version, message.epoch.id) == _rank_text(source)
    }
    return source.end(len(listed) if dice.random() < 0.6 else dice.randrange(4))


def _random_audit(dice: random.Random, source: Source, base: int) -> Audit:
    return Audit(source, base + dice.randrange(3, 12), dice.choice(("", "", "", *"abcd")))


def _rank_text(source: Source) -> tuple[str, int]:
    return (str(source.rank[0]), source.rank[1])


async def run_lanes(snapshot: Snapshot, lanes: list[Lane], dice: random.Random) -> None:
    while any(lane.todo for lane in lanes):
        batch: list[tuple[Lane, Event]] = []
        for lane in lanes:
            batch += [(lane, event) for event in lane.next_events(dice)]
        dice_order = sorted(range(len(batch)), key=lambda i: (i % 8, i))  # interleave the lanes
        await apply_batch(snapshot, [batch[i] for i in dice_order])
        for lane in lanes:
            if lane.todo and not isinstance(lane.todo[0], Event):
                await do_other(snapshot, lane, lane.todo.pop(0))


async def apply_batch(snapshot: Snapshot, batch: list[tuple[Lane, Event]]) -> None:
    known = {id(lane): len(lane.model.completed) for lane, _ in batch}
    result = await snapshot.writer.apply([event for _, event in batch])
    for (lane, event), outcome in zip(batch, result.outcomes, strict=True):
        assert lane.model.apply(event) == outcome, f"seed {lane.seed}: {event}"
    stored = {
        (e.resource, e.scope, e.incarnation.number, int(e.rank.resource_version), e.rank.id)
        for e in result.completed
    }
    lanes = {id(lane): lane for lane, _ in batch}
    expected = {
        (lane.resource, scope, incarnation, *rank)
        for i, lane in lanes.items()
        for scope, incarnation, rank in lane.model.completed[known[i] :]
    }
    assert stored == expected
    for completed in result.completed:
        lane = next(lane for lane in lanes.values() if lane.resource == completed.resource)
        rank = (int(completed.rank.resource_version), completed.rank.id)
        assert set(await snapshot.sweep(completed)) == lane.model.candidates(
            completed.scope, completed.incarnation.number, rank
        ), f"seed {lane.seed}"


async def do_other(snapshot: Snapshot, lane: Lane, message: Message) -> None:
    if message == "collect":
        dropped = await snapshot.writer.collect_tombstones("eu1", lane.key)
        assert dropped == lane.model.collect(), f"seed {lane.seed}"
    elif isinstance(message, str):
        scope = message.removeprefix("drop:")
        removed = await snapshot.writer.drop_scope("eu1", lane.key, scope)
        assert removed == lane.model.drop_scope(scope), f"seed {lane.seed}"
    elif isinstance(message, Audit):
        page = message.page_of(lane.model)
        taken = await Audits(snapshot.redis).add_page(page)
        assert (taken is PageResult.CLEAN) == lane.model.audit(page), f"seed {lane.seed}: {page}"
    else:
        assert isinstance(message, EpochEnd)
        state = await snapshot.writer.end_epoch(message)
        expected = lane.model.end(message)
        assert (state.complete, state.outcome) == expected, f"seed {lane.seed}: {message}"


async def compare_store(redis: Redis, lane: Lane) -> None:
    """Rows, tombstones and indexes are exactly the model's."""
    at = ("eu1", lane.key)
    colors = [keys.labels(*at, f"color={color}") for color in ("red", "blue")]
    owners = [keys.owners(f"owner-{lane.resource}-{n}") for n in range(2)]
    async with redis.pipeline(transaction=False) as pipe:
        for name in (keys.guards(*at), keys.bodies(*at), keys.tombstones(*at)):
            pipe.hgetall(name)
        for name in (keys.order(*at), keys.deleted(*at), keys.deletion_times(*at)):
            pipe.zrange(name, 0, -1)
        for name in (*colors, *owners):
            pipe.smembers(name)
        answers: list[Any] = await pipe.execute()
    guards, bodies, tombstones, order, deleted, times, red, blue, *owned = answers
    rows = {f"prod/{name}".encode(): row for name, row in lane.model.rows.items()}
    live = {key: row for key, row in rows.items() if row.state == "L"}
    dead = {key: row for key, row in rows.items() if row.state != "L"}
    assert {key: _facts(value) for key, value in guards.items()} == {
        key: (row.state, str(row.version), str(row.incarnation), row.uid)
        for key, row in rows.items()
    }, f"seed {lane.seed}"
    assert bodies == {key: row.body for key, row in live.items() if row.body}
    assert tombstones == {key: row.body for key, row in dead.items() if row.body}
    assert sorted(times) == sorted(tombstones)
    assert order == sorted(live)
    assert deleted == sorted(dead)
    for color, members in (("red", red), ("blue", blue)):
        assert members == {key for key, row in live.items() if color.encode() in row.body}
    for n, members in enumerate(owned):
        uid = f"owner-{lane.resource}-{n}".encode()
        member = {f"eu1|{lane.key}|".encode() + k for k, row in live.items() if uid in row.body}
        assert members == member


def _facts(raw: bytes) -> tuple[str, str, str, str]:
    guard = read_guard(raw)
    return (guard.state, guard.resource_version, guard.incarnation, guard.uid)
