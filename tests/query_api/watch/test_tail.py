"""The tail of the feed: read once for all, only while it is needed, and never silently behind."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.errors import StoreError
from fleetbus.snapshot import SnapshotWriter
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore
from fleetbus.snapshot.reads.feed import Feed
from fleetbus.store.connection import StoreEmpty
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_query_api.feed.tail import FeedTail
from support.eventually import eventually, never
from support.stores.refusing_store import refusing_store
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from fleetbus.snapshot.reads.changed import Change
    from fleetbus.snapshot.reads.feed import Position

CLUSTERS = ("eu1", "us1", "hub", "a")
"""With four shards, one in each."""
EU1, US1 = Source(cluster="eu1"), Source(cluster="us1")


@dataclass
class Notes:
    """The calls that a listener or a follower got."""

    seen: list[str] = field(default_factory=list[str])
    losses: list[str] = field(default_factory=list[str])
    positions: list[Position] = field(default_factory=list["Position"])

    def changed(self, changes: Sequence[Change]) -> None:
        assert changes, "called for nothing"
        self.seen += [f"{change.type} {change.cluster}/{change.name}" for change in changes]

    def advanced(self, changes: Sequence[Change], position: Position) -> None:
        self.positions.append(position)
        if changes:
            self.changed(changes)

    def lost(self, reason: str) -> None:
        self.losses.append(reason)


@pytest.fixture(params=[1, 4])
async def snapshot(redis: Redis, request: pytest.FixtureRequest) -> Snapshot:
    snapshot = Snapshot(redis, shards=request.param)
    await snapshot.set_up(*CLUSTERS)
    return snapshot


@pytest.fixture
async def tail(snapshot: Snapshot) -> AsyncGenerator[FeedTail]:
    tail = FeedTail(Feed(snapshot.redis, snapshot.keys))
    async with tail.running():
        yield tail


async def calls(snapshot: Snapshot) -> int:
    """Return how many commands the store has processed."""
    return int((await snapshot.redis.info("stats"))["total_commands_processed"])


async def test_a5_who_has_caught_up_has_every_change_of_their_resource(
    snapshot: Snapshot, tail: FeedTail
):
    await snapshot.apply(EU1.added("before", 1))
    await tail.catch_up()
    eu1, us1, other = Notes(), Notes(), Notes()
    tail.listen("eu1", PODS, eu1)
    tail.listen("us1", PODS, us1)
    end = tail.listen("eu1", "core/secrets", other)
    await snapshot.apply(EU1.added("web", 2), EU1.deleted("before", 3), US1.added("db", 1))
    await tail.catch_up()
    assert eu1.seen == ["added eu1/web", "deleted eu1/before"]
    assert us1.seen == ["added us1/db"]
    await snapshot.writer.removal.drop_cluster("eu1")
    end()
    await tail.catch_up()
    assert eu1.seen[2:] == ["dropped eu1/"]
    assert us1.seen == ["added us1/db"]
    assert not other.seen
    assert not eu1.losses


async def test_a5_a_long_way_to_the_end_is_read_in_parts(snapshot: Snapshot, tail: FeedTail):
    await tail.catch_up()
    notes = Notes()
    tail.listen("eu1", PODS, notes)
    for start in range(0, 1500, 300):
        await snapshot.apply(*(EU1.added(f"w{n}", n + 1) for n in range(start, start + 300)))
    await tail.catch_up()
    assert notes.seen == [f"added eu1/w{n}" for n in range(1500)]


async def test_a5_followers_get_changes_soon_and_every_position(snapshot: Snapshot, tail: FeedTail):
    notes = Notes()
    await tail.catch_up()
    tail.follow(notes)
    await snapshot.apply(EU1.added("web", 1), US1.added("db", 1))
    await eventually(lambda: len(notes.seen) == 2)
    await eventually(lambda: len(notes.positions) > 3)
    assert sorted(notes.seen) == ["added eu1/web", "added us1/db"]
    assert notes.positions == sorted(notes.positions)
    assert tail.position == notes.positions[-1]


async def test_a8_many_who_catch_up_at_once_share_a_read_and_nobody_returns_too_early(
    snapshot: Snapshot, tail: FeedTail
):
    await tail.catch_up()
    notes = Notes()
    tail.listen("eu1", PODS, notes)

    async def write_and_catch_up(number: int) -> None:
        await snapshot.apply(EU1.added(f"w{number}", number + 1))
        await tail.catch_up()
        assert f"added eu1/w{number}" in notes.seen

    await asyncio.gather(*(write_and_catch_up(number) for number in range(50)))
    before = await calls(snapshot)
    await asyncio.gather(*(tail.catch_up() for _ in range(50)))
    reads = 3 * snapshot.keys.shards  # commands of one: two scripts, in which others are called
    assert await calls(snapshot) - before <= 8 * reads


async def test_a8_an_idle_process_does_not_read_the_feed(snapshot: Snapshot, tail: FeedTail):
    await tail.catch_up()
    stop = tail.follow(Notes())
    before = await calls(snapshot)
    await eventually(lambda: _more_than(snapshot, before + 20))
    stop()
    await tail.catch_up()
    before = await calls(snapshot)
    await asyncio.sleep(0.3)  # time for many reads
    assert await calls(snapshot) == before + 1, "only our own question"


async def _more_than(snapshot: Snapshot, number: int) -> bool:
    return await calls(snapshot) > number


async def test_a5_who_listens_before_there_is_a_position_learns_of_the_loss(
    snapshot: Snapshot, tail: FeedTail
):
    notes = Notes()
    tail.listen("eu1", PODS, notes)
    await snapshot.apply(EU1.added("web", 1))
    await eventually(lambda: notes.losses)
    await snapshot.apply(EU1.added("db", 2))
    await tail.catch_up()
    assert notes.seen == ["added eu1/db"]


async def test_a5_who_begins_while_others_catch_up_loses_nothing(
    snapshot: Snapshot, tail: FeedTail
):
    async def begin(number: int) -> Notes:
        await asyncio.sleep(number / 1000)  # each begins a moment later
        await tail.catch_up()
        notes = Notes()
        end = tail.listen("eu1", PODS, notes)
        await snapshot.apply(EU1.added(f"w{number}", number + 1))
        await tail.catch_up()
        end()
        assert f"added eu1/w{number}" in notes.seen
        return notes

    for notes in await asyncio.gather(*map(begin, range(40))):
        assert not notes.losses


async def test_a5_a_feed_that_was_cut_is_a_loss_for_all(snapshot: Snapshot, tail: FeedTail):
    await tail.catch_up()
    notes, other = Notes(), Notes()
    tail.listen("eu1", PODS, notes)
    tail.listen("us1", PODS, other)
    writer = SnapshotWriter(snapshot.redis, snapshot.keys, feed_length=100)
    for number in range(1, 4):
        await writer.apply([EU1.modified(f"w{i}", number) for i in range(400)])
    await tail.catch_up()
    assert "does not reach back" in notes.losses[0]
    assert other.losses
    await snapshot.apply(EU1.added("web", 9), US1.added("db", 1))
    await tail.catch_up()
    assert notes.seen[-1:] == ["added eu1/web"]
    assert other.seen == ["added us1/db"]


async def test_p13_an_emptied_store_is_a_loss_and_the_tail_goes_on_once_it_is_filled(
    snapshot: Snapshot, tail: FeedTail
):
    await tail.catch_up()
    notes = Notes()
    tail.listen("eu1", PODS, notes)
    await snapshot.redis.flushall()
    with pytest.raises(StoreEmpty):
        await tail.catch_up()
    assert notes.losses
    await snapshot.set_up(*CLUSTERS)
    await tail.catch_up()
    await snapshot.apply(EU1.added("web", 1))
    await tail.catch_up()
    assert notes.seen == ["added eu1/web"]


async def test_p13_another_generation_of_the_feed_is_a_loss(snapshot: Snapshot, tail: FeedTail):
    await tail.catch_up()
    notes = Notes()
    tail.listen("eu1", PODS, notes)
    shard = snapshot.keys.shard_of("us1")
    await snapshot.redis.set(snapshot.keys.feed_generation(shard), "another")
    await tail.catch_up()
    assert "begun anew" in notes.losses[0]


async def test_a5_after_a_store_was_away_nothing_is_missing_and_nothing_was_lost(tmp_path: Path):
    async with (
        refusing_store(tmp_path / "store") as refusing,
        Redis.from_url(refusing.url) as redis,
    ):
        snapshot, notes = Snapshot(redis), Notes()
        await snapshot.set_up("eu1")
        tail = FeedTail(Feed(redis, snapshot.keys))
        async with tail.running():
            await tail.catch_up()
            tail.listen("eu1", PODS, notes)
            await snapshot.apply(EU1.added("web", 1))
            async with refusing.without_rights():
                with pytest.raises(RedisError):
                    await tail.catch_up()
            await tail.catch_up()
    assert notes.seen == ["added eu1/web"]
    assert not notes.losses


async def test_a8_an_entry_that_nobody_understands_does_not_end_the_tail(
    snapshot: Snapshot, tail: FeedTail
):
    await tail.catch_up()
    notes = Notes()
    tail.listen("eu1", PODS, notes)
    keys, shard = snapshot.keys, snapshot.keys.shard_of("eu1")
    version = await snapshot.redis.incrby(keys.counter(shard), keys.shards)
    await snapshot.redis.xadd(keys.feed(shard), {"type": "added"}, id=f"{version}-0")
    await eventually(lambda: notes.losses)
    await tail.catch_up()
    await snapshot.apply(EU1.added("web", 1))
    await tail.catch_up()
    assert notes.seen == ["added eu1/web"]


class Broken(Notes):
    def changed(self, changes: Sequence[Change]) -> None:
        raise RuntimeError(f"cannot take {len(changes)}")


async def test_a8_a_listener_that_fails_does_not_end_the_feed_of_others(
    snapshot: Snapshot, tail: FeedTail
):
    await tail.catch_up()
    broken, notes = Broken(), Notes()
    tail.listen("eu1", PODS, broken)
    tail.listen("eu1", PODS, notes)
    await snapshot.apply(EU1.added("web", 1))
    await tail.catch_up()
    assert notes.seen == ["added eu1/web"]
    assert broken.losses, "it may be behind: it must drop what it holds"


async def test_a6_who_waits_while_the_process_stops_gets_an_error(snapshot: Snapshot):
    tail = FeedTail(Feed(snapshot.redis, snapshot.keys))
    async with tail.running():
        await tail.catch_up()
        waiting = asyncio.gather(*(tail.catch_up() for _ in range(3)), return_exceptions=True)
        await asyncio.sleep(0)
    assert [type(outcome) for outcome in await waiting] == [StoreError] * 3
    with pytest.raises(StoreError):
        await tail.catch_up()


async def test_a5_a_store_that_stands_still_is_away_for_who_catches_up(tmp_path: Path):
    async with valkey_server(dir=tmp_path) as server, Redis.from_url(server.url) as redis:
        snapshot = Snapshot(redis)
        await snapshot.set_up(*CLUSTERS)
        tail = FeedTail(Feed(snapshot.redis, snapshot.keys), answer_within=timedelta(seconds=0.2))
        async with tail.running():
            await tail.catch_up()
            server.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(StoreError, match="does not answer in time"):
                    await tail.catch_up()
            finally:
                server.process.send_signal(signal.SIGCONT)
            await tail.catch_up()


async def test_p13_a_server_that_was_replaced_is_waited_for(snapshot: Snapshot, tail: FeedTail):
    keys = snapshot.keys
    shard = keys.shard_of("us1")
    store = CheckpointStore(snapshot.redis, keys, Beside.shard_of_snapshot(keys, shard, PROJECTOR))
    await store.read(PROJECTOR)
    await tail.catch_up()
    await snapshot.redis.hset(keys.store(shard), "run", "another server")
    waiting = asyncio.create_task(tail.catch_up())
    await never(waiting.done, timedelta(seconds=0.2))
    await store.read(PROJECTOR)  # as the projector does when it has noticed
    position = await waiting
    await snapshot.redis.hset(keys.store(shard), "run", "a third one")
    brief = FeedTail(tail.feed, answer_within=timedelta(seconds=0.2))
    async with brief.running():
        with pytest.raises(StoreError, match="another server"):
            await brief.catch_up()
        await store.read(PROJECTOR)
        assert (await brief.catch_up()).version > position.version
