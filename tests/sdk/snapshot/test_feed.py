"""The feed: every change once, in one order, however many shards there are (rules A5, P13)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.snapshot import ListQuery, SnapshotWriter
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore
from fleetbus.snapshot.reads.changed import Change
from fleetbus.snapshot.reads.feed import ExpiredPosition, Feed, Position, resume
from fleetbus.store.connection import StoreEmpty
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

CLUSTERS = ("eu1", "us1", "hub", "a")
"""With four shards, one in each."""
HOUR = 3_600_000_000


@pytest.fixture(params=[1, 4])
async def snapshot(redis: Redis, request: pytest.FixtureRequest) -> Snapshot:
    snapshot = Snapshot(redis, shards=request.param)
    await snapshot.set_up(*CLUSTERS)
    return snapshot


def feed_of(snapshot: Snapshot) -> Feed:
    return Feed(snapshot.redis, snapshot.keys)


async def written(snapshot: Snapshot) -> list[tuple[int, str]]:
    """Version and key of every change, as the shards hold them."""
    shards = range(snapshot.keys.shards)
    entries = [entry for shard in shards for entry in await snapshot.feed(shard)]
    return sorted((int(number.partition("-")[0]), key) for number, _, key in entries)


async def write(snapshot: Snapshot, cluster: str, rounds: int) -> None:
    """Batches of changes of one cluster, one after the other."""
    dice, source = random.Random(cluster), Source(cluster=cluster)
    for number in range(1, rounds + 1):
        names = [f"{cluster}-{dice.randrange(8)}" for _ in range(dice.randrange(1, 6))]
        await snapshot.apply(*(source.modified(name, number) for name in dict.fromkeys(names)))
        if dice.random() < 0.05:  # the clock of its server was ahead, and goes back
            shard = snapshot.keys.shard_of(cluster)
            step = HOUR - HOUR % snapshot.keys.shards
            await snapshot.redis.incrby(snapshot.keys.counter(shard), step)


async def follow(feed: Feed, position: Position, most: int, until: asyncio.Event) -> list[Change]:
    """Read until `until` is set and nothing is left."""
    feed_changes: list[Change] = []
    while True:
        is_last = until.is_set()
        changes, position = await feed.read(position, most=most)
        assert len(changes) <= most
        feed_changes += changes
        if is_last and not changes:
            return feed_changes


@pytest.mark.parametrize("most", [3, 500])
async def test_a5_no_change_is_missed_or_comes_twice_while_all_shards_are_written(
    snapshot: Snapshot, most: int
):
    feed, is_written = feed_of(snapshot), asyncio.Event()
    readers = [
        asyncio.create_task(follow(feed, await feed.end(), most, is_written)) for _ in range(2)
    ]
    await asyncio.gather(*(write(snapshot, cluster, 60) for cluster in CLUSTERS))
    is_written.set()
    expected = await written(snapshot)
    assert len({version for version, _ in expected}) == len(expected), "each has its own version"
    for reader in readers:
        changes = await reader
        assert [
            (change.version, f"{change.namespace}/{change.name}") for change in changes
        ] == expected


async def test_a5_a_watch_from_the_version_of_a_list_misses_nothing(snapshot: Snapshot):
    feed = feed_of(snapshot)
    generation = (await feed.end()).generation
    writing = asyncio.gather(*(write(snapshot, cluster, 30) for cluster in CLUSTERS))
    await asyncio.sleep(0.01)  # in the middle of the writes
    page = await snapshot.reader.list(ListQuery(clusters=CLUSTERS, resource=PODS))
    listed = {(entry.cluster, entry.name): entry.counter for entry in page.entries}
    await writing
    changes, _ = await feed.read(Position(generation, page.counter))
    versions = {(change.cluster, change.name): change.version for change in changes}
    now = await snapshot.reader.list(ListQuery(clusters=CLUSTERS, resource=PODS))
    latest = {(entry.cluster, entry.name): entry.counter for entry in now.entries}
    assert listed | versions == latest


async def test_a5_positions_move_on_without_changes_and_old_ones_stay_valid(snapshot: Snapshot):
    feed = feed_of(snapshot)
    first = await feed.end()
    await snapshot.apply(Source(cluster="eu1").added("web", 1))
    changes, second = await feed.read(first)
    assert [(change.type, change.cluster, change.resource, change.name) for change in changes] == [
        ("added", "eu1", PODS, "web")
    ]
    assert await feed.read(first, most=1) == (changes, Position(first.generation, changes[-1][0]))
    none, third = await feed.read(second)
    assert not none
    assert third.version >= second.version


async def test_a5_a_dropped_cluster_is_a_change(snapshot: Snapshot):
    feed = feed_of(snapshot)
    position = await feed.end()
    await snapshot.writer.removal.drop_cluster("us1")
    changes, _ = await feed.read(position)
    assert [(change.type, change.cluster) for change in changes] == [("dropped", "us1")]


async def test_a5_a_position_before_the_start_of_the_feed_is_refused(snapshot: Snapshot):
    writer = SnapshotWriter(snapshot.redis, snapshot.keys, feed_length=100)
    feed = feed_of(snapshot)
    early = await feed.end()
    source = Source(cluster="us1")
    for number in range(1, 4):
        await writer.apply([source.modified(f"w{i}", number) for i in range(200)])
    with pytest.raises(ExpiredPosition, match="does not reach back"):
        await feed.read(early)
    changes, _ = await feed.read(await feed.end())
    assert changes == []


async def test_p13_positions_are_void_once_a_shard_is_on_another_server(snapshot: Snapshot):
    feed, keys = feed_of(snapshot), snapshot.keys
    shard = keys.shard_of("us1")
    store = CheckpointStore(snapshot.redis, keys, Beside.shard_of_snapshot(keys, shard, PROJECTOR))
    await store.read(PROJECTOR)
    position = await feed.end()
    await snapshot.redis.hset(keys.store(shard), "run", "another server")
    with pytest.raises(ExpiredPosition, match="another server"):  # before anybody has renewed it
        await feed.read(position)
    await store.read(PROJECTOR)
    with pytest.raises(ExpiredPosition, match="begun anew"):
        await feed.read(position)
    assert (await feed.end()).version > position.version


async def test_p13_an_emptied_shard_has_no_version(snapshot: Snapshot):
    feed, shard = feed_of(snapshot), snapshot.keys.shard_of("us1")
    position = await feed.end()
    await snapshot.redis.delete(snapshot.keys.generation(shard))
    with pytest.raises(StoreEmpty):
        await feed.end()
    assert await snapshot.writer.ensure_generation() == {shard}
    with pytest.raises(ExpiredPosition):
        await feed.read(position)


async def test_a5_only_versions_of_this_feed_are_positions(snapshot: Snapshot):
    feed, keys = feed_of(snapshot), snapshot.keys
    shard = keys.shard_of("us1")
    store = CheckpointStore(snapshot.redis, keys, Beside.shard_of_snapshot(keys, shard, PROJECTOR))
    await store.read(PROJECTOR)
    end = await feed.end()
    assert resume(end.version, end) == end
    await snapshot.apply(Source(cluster="us1").added("web", 1))
    old, later = end, await feed.end()
    changes, _ = await feed.read(resume(old.version, later))
    assert [change.name for change in changes] == ["web"]
    with pytest.raises(ExpiredPosition, match="never issued"):
        resume(later.version + 1, later)
    with pytest.raises(ExpiredPosition, match="begun anew"):
        resume(1, later)
    await snapshot.redis.hset(keys.store(shard), "run", "another server")
    await store.read(PROJECTOR)
    now = await feed.end()
    for version in (old.version, later.version):
        with pytest.raises(ExpiredPosition, match="begun anew"):
            resume(version, now)
    assert resume(now.version, now) == now


async def test_a5_a_feed_of_an_earlier_release_begins_anew(snapshot: Snapshot):
    keys = snapshot.keys
    shard = keys.shard_of("us1")
    await snapshot.redis.set(keys.feed_generation(shard), "without a version")
    end = await feed_of(snapshot).end()
    with pytest.raises(ExpiredPosition, match="does not tell"):
        resume(end.version, end)
    store = CheckpointStore(snapshot.redis, keys, Beside.shard_of_snapshot(keys, shard, PROJECTOR))
    await store.read(PROJECTOR)
    now = await feed_of(snapshot).end()
    assert resume(now.version, now) == now
