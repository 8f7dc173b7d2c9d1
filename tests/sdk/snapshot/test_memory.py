"""The store after a cluster has left the fleet: keys and memory."""

from __future__ import annotations

from redis.asyncio import Redis

from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import Snapshot, Source

OBJECTS = 300


async def used(redis: Redis) -> int:
    """Bytes that the store holds, without buffers and the log of slow commands."""
    await redis.slowlog_reset()
    return int((await redis.info("memory"))["used_memory_dataset"])


async def fill(snapshot: Snapshot, name: str) -> None:
    await snapshot.set_up(name)
    source = Source(cluster=name, rank=(1000, 1))
    labels = [{"labels": {"only": f"{name}-{number}"}} for number in range(OBJECTS)]
    listed = [
        source.listed(f"o{number}", number + 1, metadata=metadata)
        for number, metadata in enumerate(labels)
    ]
    await snapshot.apply(*listed)
    ended = await snapshot.writer.end_epoch(source.end(OBJECTS))
    await snapshot.writer.sweeps.finish(ended.epoch)


async def come_and_go(snapshot: Snapshot, *names: str) -> int:
    """Clusters join, are listed and leave; answers how many bytes they took meanwhile."""
    before = await used(snapshot.redis)
    for name in names:
        await fill(snapshot, name)
    most = await used(snapshot.redis)
    for name in names:
        await snapshot.writer.removal.drop_cluster(name)
    await snapshot.redis.delete(SnapshotKeys().feed(0))  # it is cut by length, not by cluster
    return most - before


async def test_clusters_that_come_and_go_leave_no_memory_behind(redis: Redis):
    snapshot = Snapshot(redis)
    await come_and_go(snapshot, "first", "second", "third")  # scripts are loaded, and buffers made
    before, stored_keys = await used(redis), set(await snapshot.all_keys())
    taken = 0
    for turn in range(6):
        taken += await come_and_go(snapshot, f"a{turn}", f"b{turn}", f"c{turn}")
    assert taken > 18 * OBJECTS * 300
    assert await snapshot.all_keys() == stored_keys
    assert await used(redis) - before < taken / 20
