"""Reads of single objects that are asked for at one time go to the store together."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fleetbus.snapshot import Entry, SnapshotReader
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import PODS, Snapshot, Source


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    """Two clusters with five pods each, one of them deleted."""
    snapshot = Snapshot(redis)
    await snapshot.set_up("ap1", "eu1")
    for cluster in ("ap1", "eu1"):
        source = Source(cluster=cluster)
        await snapshot.apply(*(source.added(f"p{i}", i + 1) for i in range(5)))
        await snapshot.apply(source.deleted("p4", 9))
    return snapshot


async def questions(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_exec", {}).get("calls", 0))


async def test_reads_of_one_turn_are_one_question_and_each_gets_its_own_answer(
    snapshot: Snapshot, redis: Redis
):
    before = await questions(redis)
    reader = snapshot.reader
    entries = await asyncio.gather(
        *(
            reader.get(cluster, PODS, "prod", f"p{i}")
            for cluster in ("ap1", "eu1")
            for i in range(5)
        ),
        reader.get("eu1", PODS, "prod", "p0"),
        reader.get_deleted("eu1", PODS, "prod", "p4"),
    )
    assert await questions(redis) == before + 1
    named = [(entry.cluster, entry.name) if entry else None for entry in entries]
    a, b = ([(cluster, f"p{i}") for i in range(4)] for cluster in ("ap1", "eu1"))
    assert named == [*a, None, *b, None, ("eu1", "p0"), ("eu1", "p4")]


async def test_a_read_sees_what_was_written_before_it_was_asked_for(snapshot: Snapshot):
    first = asyncio.create_task(snapshot.reader.get("eu1", PODS, "prod", "p1"))
    await asyncio.sleep(0)
    await snapshot.apply(Source(cluster="eu1").added("p1", 50))
    second = await snapshot.reader.get("eu1", PODS, "prod", "p1")
    assert second is not None
    assert second.resource_version == "50"
    assert await first is not None


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("stopped", [0, 1])
async def test_who_is_stopped_does_not_take_the_others_answers_with_it(
    snapshot: Snapshot, stopped: int, turns: int
):
    reads = [
        asyncio.create_task(snapshot.reader.get("eu1", PODS, "prod", f"p{i}")) for i in range(3)
    ]
    for _ in range(turns):
        await asyncio.sleep(0)
    reads[stopped].cancel()
    done = await asyncio.gather(*reads, return_exceptions=True)
    assert isinstance(done.pop(stopped), asyncio.CancelledError)
    assert all(isinstance(outcome, Entry) for outcome in done)


async def test_when_the_store_is_away_each_caller_gets_an_error_of_its_own():
    async with Redis(port=1, retry=Retry(NoBackoff(), 0)) as nowhere:
        reader = SnapshotReader(nowhere, SnapshotKeys())
        reads = (reader.get("eu1", PODS, "prod", f"p{i}") for i in range(3))
        errors = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(error, RedisError) for error in errors)
    assert len({id(error) for error in errors}) == 3
