"""A store that lost its last writes is given them again, and deletes nothing by it (P11, P13, P14).

The store is restarted from a copy of its past, as by an older file, a late append or a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import ensure_consumer
from fleetbus.bus.jetstream import ensure_stream
from fleetbus.bus.reader_groups import BoundDurable
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.checkpoint import Loss, OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore, Offset
from fleetbus.snapshot.records import ResourceState
from fleetbus.watchers.resync import read_audit_request
from fleetbus_devfleet.processes.servers import ValkeyServer
from fleetbus_proto.events import Event
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from support.eventually import eventually
from support.rigs.projector import (
    PODS,
    ProjectorRig,
    heartbeat,
    projector_rig,
)
from support.stores.snapshot import Source

KEYS = SnapshotKeys()
CHECKPOINT = KEYS.offset_checkpoint(0, PROJECTOR)
SOURCE = Source(rank=(5, 5))
FULL = 1024**2
LARGE = b'"' + b"x" * (FULL // 3) + b'"'


@pytest.fixture
async def rig(
    nats_url: str, store: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ProjectorRig]:
    """A projector with short times and a store of its own, not started yet."""
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(seconds=0.05))
    monkeypatch.setattr("fleetbus.snapshot.offsets.checkpoint.CHECK_EVERY", timedelta(seconds=0.05))
    async with projector_rig(nats_url, store.url) as opened:
        yield opened


async def names(rig: ProjectorRig) -> dict[str, str]:
    return {
        name: await rig.snapshot.version(name)
        async for _, name in rig.snapshot.reader.keys("eu1", PODS)
    }


async def synced(rig: ProjectorRig) -> None:
    """Two objects in the store, and all that is on the stream behind a checkpoint."""
    await rig.started("eu1")
    await rig.publish(heartbeat())
    await rig.publish_epoch(SOURCE, a=4, b=4)
    await rig.synced()
    await eventually(lambda: is_shown(rig))


async def is_shown(rig: ProjectorRig) -> bool:
    """Whether the checkpoint vouches for all that is on the stream."""
    low = await rig.redis.hget(CHECKPOINT, "low")
    return await rig.is_through() and int(low or 0) >= await last_sequence(rig)


async def last_sequence(rig: ProjectorRig) -> int:
    info = await ensure_stream(rig.bus)
    return int(info["state"]["last_seq"])


async def change(rig: ProjectorRig) -> None:
    """A change, a creation and a deletion, handled and acknowledged."""
    await rig.publish(SOURCE.modified("a", 6), SOURCE.added("c", 7), SOURCE.deleted("b", 8))
    await eventually(rig.is_through)
    assert await names(rig) == {"a": "6", "c": "7"}


async def stop(rig: ProjectorRig) -> None:
    """End the process: the next one has no connection of before."""
    await rig.stop()
    await rig.connections.redis.connection_pool.disconnect()


async def roll_back(rig: ProjectorRig, store: ValkeyServer) -> None:
    """The store has again what it had at its last SAVE."""
    store.kill()
    await store.restart()
    await rig.redis.connection_pool.disconnect()  # else the test's next question fails


async def test_p11_what_a_store_has_lost_is_applied_again(
    rig: ProjectorRig, store: ValkeyServer
) -> None:
    await synced(rig)
    await rig.redis.save()
    feed = await rig.snapshot.feed_generation()
    request = await rig.resync_request()
    await change(rig)
    counter = await rig.snapshot.reader.version()
    await roll_back(rig, store)
    await eventually(lambda: has_again(rig))
    assert await rig.snapshot.reader.get_deleted("eu1", PODS, "prod", "b") is not None
    assert await rig.state() is ResourceState.SYNCED
    assert await rig.resync_request() == request, "nothing had to be listed"
    assert [event.name for event in rig.deleted] == ["b"], "promise 1"
    # P13: positions of before mean nothing any more; P15: somebody looks whether all is there.
    assert await rig.snapshot.feed_generation() != feed
    assert await rig.snapshot.reader.version() > counter
    await eventually(lambda: read_audit_request(rig.connections.kv, "eu1"))


async def has_again(rig: ProjectorRig) -> bool:
    return await is_shown(rig) and await names(rig) == {"a": "6", "c": "7"}


async def test_p11_p14_absence_means_nothing_until_the_store_has_everything_again(
    rig: ProjectorRig, store: ValkeyServer
) -> None:
    await synced(rig)
    await rig.redis.save()
    await change(rig)
    await stop(rig)
    await roll_back(rig, store)
    freshness = await rig.snapshot.reader.freshness(["eu1"], PODS)
    assert freshness["eu1"].state is ResourceState.LISTING, "the object c exists, and is not there"
    assert "lost its last writes" in freshness["eu1"].reason
    rig.start()

    async def is_complete() -> bool:
        return (await rig.snapshot.reader.freshness(["eu1"], PODS))["eu1"].is_complete

    await eventually(is_complete)
    assert await names(rig) == {"a": "6", "c": "7"}


async def test_p11_a_restart_that_lost_nothing_costs_no_list_and_no_message(
    rig: ProjectorRig, store: ValkeyServer
) -> None:
    await synced(rig)
    await rig.redis.save()
    run, request = (
        await rig.redis.hget(CHECKPOINT, "run"),
        await rig.resync_request(),
    )
    await roll_back(rig, store)

    async def is_settled() -> bool:
        return await rig.redis.hget(CHECKPOINT, "run") != run

    await eventually(is_settled)
    assert (await rig.resync_request(), rig.deleted, await names(rig)) == (
        request,
        [],
        {"a": "4", "b": "4"},
    )


@pytest.mark.parametrize("lost", ["stream", "checkpoint", "another stream"])
async def test_p11_a_store_older_than_the_stream_is_superseded_without_a_deletion(
    rig: ProjectorRig, store: ValkeyServer, lost: str
) -> None:
    rig.settings["stream_max_bytes"] = FULL
    await synced_small(rig)
    if lost == "checkpoint":
        await rig.redis.delete(CHECKPOINT)
    if lost == "another stream":
        await rig.redis.hset(CHECKPOINT, "stream", "of another time")
    await rig.redis.save()
    await rig.publish(SOURCE.modified("a", 6), SOURCE.added("c", 7))
    if lost == "stream":
        for at in range(4):
            await rig.publish(Source(cluster="none").modified(f"filler-{at}", at + 1, body=LARGE))
    await stop(rig)
    await roll_back(rig, store)
    rig.start()
    request = await rig.resync_requested("store")
    assert await rig.state() is ResourceState.LISTING
    # The new list has what the store lacks, and lacks what was deleted in the time that is lost.
    source = Source(rank=(9, request.min_epoch))
    await rig.publish_epoch(source, a=6, c=7)
    await rig.synced(epoch=f"9 {request.min_epoch}")
    assert await names(rig) == {"a": "6", "c": "7"}
    assert [(e.name, e.resource_version) for e in rig.deleted] == [("b", "9")]


async def synced_small(rig: ProjectorRig) -> None:
    await rig.started("eu1")
    await rig.publish(heartbeat())
    await rig.publish_epoch(SOURCE, a=4, b=4)
    await rig.synced()

    async def is_low() -> bool:
        low = await rig.redis.hget(CHECKPOINT, "low")
        return await rig.is_through() and int(low or 0) >= 4

    await eventually(is_low)


async def test_p13_an_emptied_store_whose_server_stays_is_noticed_within_a_look(
    rig: ProjectorRig,
) -> None:
    """FLUSHALL leaves run_id and replid as they were; nothing else happens."""
    rig.timing = replace(rig.timing, checks=timedelta(seconds=60))
    await synced(rig)
    generation = await rig.snapshot.reader.generation()
    await rig.redis.flushall()
    await eventually(rig.snapshot.reader.generation)
    assert await rig.snapshot.reader.generation() != generation


# --- the checkpoint itself ------------------------------------------------------------------------


class Handled:
    """Two processes of one consumer: what each was handed."""

    def __init__(self, rig: ProjectorRig) -> None:
        self.rig = rig
        self.names: list[str] = []
        self.losses: list[Loss] = []

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        events = [d.message for d in deliveries if isinstance(d.message, Event)]
        await self.rig.connections.writer.apply(events)
        self.names += [event.name for event in events]

    async def note(self, loss: Loss, _reason: str) -> None:
        self.losses.append(loss)

    def checkpoint(self) -> OffsetCheckpoint:
        return OffsetCheckpoint(
            bus=self.rig.bus,
            states=BusStates(self.rig.bus),
            redis=self.rig.redis,
            keys=KEYS,
            beside=Beside.shard_of_snapshot(KEYS, 0, PROJECTOR),
            consumer=PROJECTOR,
            durable=BoundDurable(PROJECTOR),
            filters=STREAM_SUBJECTS,
            handle=self.handle,
            on_loss=self.note,
        )

    async def consume(self) -> None:
        consumer = Consumer(self.rig.bus, stream=STREAM, durable=PROJECTOR, handle=self.handle)
        task = asyncio.create_task(consumer.run())
        try:
            await eventually(self.rig.is_through)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def handled(rig: ProjectorRig) -> Handled:
    await rig.snapshot.set_up("eu1")
    await ensure_stream(rig.bus)
    await ensure_consumer(rig.bus, PROJECTOR, list(STREAM_SUBJECTS))
    return Handled(rig)


async def test_p11_processes_of_one_consumer_share_one_replay(
    handled: Handled, store: ValkeyServer
) -> None:
    first, two = handled.checkpoint(), handled.checkpoint()
    await first.check()
    await two.check()
    await handled.rig.redis.save()
    await handled.rig.publish(SOURCE.added("a", 1), SOURCE.added("b", 2))
    await handled.consume()
    handled.names.clear()
    await roll_back(handled.rig, store)
    await asyncio.gather(first.check(), two.check())
    await asyncio.gather(first.check(), two.check())
    assert handled.names == ["a", "b"]
    assert first.is_settled
    assert two.is_settled
    assert handled.losses == []


async def test_p11_nothing_is_settled_when_the_store_goes_back_again_during_the_replay(
    handled: Handled, store: ValkeyServer
) -> None:
    checkpoint = handled.checkpoint()
    await checkpoint.check()
    await handled.rig.redis.save()
    await handled.rig.publish(SOURCE.added("a", 1))
    await handled.consume()
    await roll_back(handled.rig, store)
    apply = handled.handle
    times: list[int] = []

    async def then_lose_it(deliveries: Sequence[Delivery]) -> None:
        await apply(deliveries)
        times.append(len(deliveries))
        if len(times) == 1:
            await roll_back(handled.rig, store)

    handled.handle = then_lose_it
    checkpoint = handled.checkpoint()
    await checkpoint.check()
    assert not checkpoint.is_settled
    assert await handled.rig.snapshot.version("a") == ""
    await checkpoint.check()
    await checkpoint.check()
    assert checkpoint.is_settled
    assert await handled.rig.snapshot.version("a") == "1"
    assert times == [1, 1]


async def test_p11_a_checkpoint_is_never_written_to_another_server_than_the_one_it_was_read_from(
    handled: Handled, store: ValkeyServer
) -> None:
    beside = Beside.shard_of_snapshot(KEYS, 0, PROJECTOR)
    checkpoints = CheckpointStore(handled.rig.redis, KEYS, beside)
    await handled.rig.redis.save()
    checkpoint = await checkpoints.read(PROJECTOR)
    await roll_back(handled.rig, store)
    assert not await checkpoints.write(PROJECTOR, checkpoint, Offset("s", 9, 9))
    again = await checkpoints.read(PROJECTOR)
    assert again.offset is None
    assert await checkpoints.write(PROJECTOR, again, Offset("s", 9, 9))
    assert not await checkpoints.write(PROJECTOR, again, Offset("s", 8, 8)), (
        "somebody else wrote first"
    )


async def test_p11_a_checkpoint_below_the_one_remembered_is_a_loss_though_the_server_is_the_same(
    handled: Handled,
) -> None:
    checkpoint = handled.checkpoint()
    await checkpoint.check()
    await handled.rig.publish(SOURCE.added("a", 1), SOURCE.added("b", 2))
    await handled.consume()
    await checkpoint.check()
    handled.names.clear()
    await handled.rig.redis.hset(CHECKPOINT, "low", 1)
    await checkpoint.check()
    assert handled.names == ["b"]
    assert checkpoint.is_settled


async def test_p12_an_ack_floor_below_the_checkpoint_is_a_break(handled: Handled) -> None:
    """A server that lost data sets a consumer that is ahead back, at its start."""
    checkpoint = handled.checkpoint()
    await checkpoint.check()
    await handled.rig.publish(SOURCE.added("a", 1), SOURCE.added("b", 2))
    await handled.consume()
    await checkpoint.check()
    await handled.rig.redis.hset(CHECKPOINT, "floor", 3)
    await checkpoint.check()
    fields = await handled.rig.redis.hmget(CHECKPOINT, ["breaks", "floor"])
    assert fields == [b"1", b"2"]
