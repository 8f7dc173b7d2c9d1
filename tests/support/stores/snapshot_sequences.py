"""Random sequences of messages, applied to a real store and to the model side by side.

Every sequence is of one resource, and short; sequences share the batches. Messages are
permuted, duplicated and dropped, contradict each other, come from zombies of older incarnations,
ranks and scopes, and their versions cross 10, 2^53 and 2^100.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from fleetbus.snapshot.audit import Audits, PageResult
from fleetbus.snapshot.guard import read_guard
from fleetbus_proto.events import AuditPage, EpochEnd, Event
from support.stores.snapshot import Snapshot, Source, body_of
from support.stores.snapshot_model import SnapshotModel

STEPS = 32
CLUSTERS = ("eu1", "us1", "hub", "a")
"""With four shards, one in each."""


@dataclass(frozen=True)
class Audit:
    """Pages of an API server that mostly agree with the snapshot."""

    source: Source
    version: int
    left_out: str

    def page_of(self, model: SnapshotModel) -> AuditPage:
        states = {
            name: (row.uid, row.version)
            for name, row in model.rows.items()
            if row.state == "L" and row.version <= self.version and name != self.left_out
        }
        return self.source.audit(self.version, 1, states)


Message = Event | EpochEnd | Audit | str


@dataclass
class MessageSequence:
    """One resource with its messages still to come."""

    seed: int
    cluster: str
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


def make_sequence(seed: int) -> MessageSequence:
    dice = random.Random(seed)
    cluster, resource = CLUSTERS[seed % len(CLUSTERS)], f"r{seed}"
    base = dice.choice((0, 6, 95, 2**53 - 4, 2**100 - 4))
    sources = [
        Source(
            cluster=cluster,
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
    return MessageSequence(seed, cluster, resource, dice.choices(pool, k=STEPS))


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


async def run_sequences(
    snapshot: Snapshot, sequences: list[MessageSequence], dice: random.Random
) -> None:
    while any(sequence.todo for sequence in sequences):
        batch: list[tuple[MessageSequence, Event]] = []
        for sequence in sequences:
            batch += [(sequence, event) for event in sequence.next_events(dice)]
        dice_order = sorted(range(len(batch)), key=lambda i: (i % 8, i))  # interleave the sequences
        await apply_batch(snapshot, [batch[i] for i in dice_order])
        for sequence in sequences:
            if sequence.todo and not isinstance(sequence.todo[0], Event):
                await do_other(snapshot, sequence, sequence.todo.pop(0))


async def apply_batch(snapshot: Snapshot, batch: list[tuple[MessageSequence, Event]]) -> None:
    counts = {id(sequence): len(sequence.model.completed) for sequence, _ in batch}
    result = await snapshot.writer.apply([event for _, event in batch])
    for (sequence, event), outcome in zip(batch, result.outcomes, strict=True):
        assert sequence.model.apply(event) == outcome, f"seed {sequence.seed}: {event}"
    stored = {
        (e.resource, e.scope, e.incarnation.number, int(e.rank.resource_version), e.rank.id)
        for e in result.completed
    }
    sequences = {id(sequence): sequence for sequence, _ in batch}
    expected = {
        (sequence.resource, scope, incarnation, *rank)
        for i, sequence in sequences.items()
        for scope, incarnation, rank in sequence.model.completed[counts[i] :]
    }
    assert stored == expected
    for completed in result.completed:
        sequence = next(
            sequence for sequence in sequences.values() if sequence.resource == completed.resource
        )
        rank = (int(completed.rank.resource_version), completed.rank.id)
        assert set(await snapshot.sweep(completed)) == sequence.model.candidates(
            completed.scope, completed.incarnation.number, rank
        ), f"seed {sequence.seed}"


async def do_other(snapshot: Snapshot, sequence: MessageSequence, message: Message) -> None:
    if message == "collect":
        dropped = await snapshot.writer.removal.collect_tombstones(sequence.cluster, sequence.key)
        assert dropped == sequence.model.collect(), f"seed {sequence.seed}"
    elif isinstance(message, str):
        scope = message.removeprefix("drop:")
        removed = await snapshot.writer.removal.drop_scope(sequence.cluster, sequence.key, scope)
        assert removed == sequence.model.drop_scope(scope), f"seed {sequence.seed}"
    elif isinstance(message, Audit):
        page = message.page_of(sequence.model)
        taken = await Audits(snapshot.redis, snapshot.keys).add_page(page)
        assert (taken is PageResult.CLEAN) == sequence.model.audit(page), (
            f"seed {sequence.seed}: {page}"
        )
    else:
        assert isinstance(message, EpochEnd)
        state = await snapshot.writer.end_epoch(message)
        expected = sequence.model.end(message)
        assert (state.complete, state.outcome) == expected, f"seed {sequence.seed}: {message}"


async def compare_store(snapshot: Snapshot, sequence: MessageSequence) -> None:
    """Rows, tombstones and indexes are exactly the model's."""
    redis, keys = snapshot.redis, snapshot.keys
    at, shard = (sequence.cluster, sequence.key), keys.shard_of(sequence.cluster)
    colors = [keys.labels(*at, f"color={color}") for color in ("red", "blue")]
    owners = [keys.owners(shard, f"owner-{sequence.resource}-{n}") for n in range(2)]
    async with redis.pipeline(transaction=False) as pipe:
        for name in (
            keys.guards(*at),
            keys.bodies(*at),
            keys.tombstones(*at),
        ):
            pipe.hgetall(name)
        for name in (
            keys.order(*at),
            keys.deleted(*at),
            keys.deletion_times(*at),
        ):
            pipe.zrange(name, 0, -1)
        for name in (*colors, *owners):
            pipe.smembers(name)
        answers: list[Any] = await pipe.execute()
    guards, bodies, tombstones, order, deleted, times, red, blue, *owned = answers
    rows = {f"prod/{name}".encode(): row for name, row in sequence.model.rows.items()}
    live = {key: row for key, row in rows.items() if row.state == "L"}
    dead = {key: row for key, row in rows.items() if row.state != "L"}
    assert {key: _facts(value) for key, value in guards.items()} == {
        key: (row.state, str(row.version), str(row.incarnation), row.uid)
        for key, row in rows.items()
    }, f"seed {sequence.seed}"
    assert bodies == {key: row.body for key, row in live.items() if row.body}
    assert tombstones == {key: row.body for key, row in dead.items() if row.body}
    assert sorted(times) == sorted(tombstones)
    assert order == sorted(live)
    assert deleted == sorted(dead)
    for color, members in (("red", red), ("blue", blue)):
        assert members == {key for key, row in live.items() if color.encode() in row.body}
    for n, members in enumerate(owned):
        uid = f"owner-{sequence.resource}-{n}".encode()
        member = {
            f"{sequence.cluster}|{sequence.key}|".encode() + k
            for k, row in live.items()
            if uid in row.body
        }
        assert members == member


def _facts(raw: bytes) -> tuple[str, str, str, str]:
    guard = read_guard(raw)
    return (guard.state, guard.resource_version, guard.incarnation, guard.uid)
