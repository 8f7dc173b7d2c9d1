"""The projector on several shards: a loss of one is repaired alone, one away stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.consume import PartlyHandled
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.reader_groups import BoundDurable
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.by_shard import ByShard
from fleetbus.snapshot.offsets.checkpoint import OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside
from fleetbus.snapshot.offsets.snapshot_settled import SnapshotSettled
from fleetbus.snapshot.records import ResourceState
from fleetbus.snapshot.shards import WrongShards
from fleetbus.workqueue import QueueUnavailableError
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import STREAM_SUBJECTS
from support.eventually import eventually, never
from support.rigs.projector import ProjectorRig, heartbeat, projector_rig
from support.stores.snapshot import Snapshot, Source

CLUSTERS = ("eu1", "us1", "hub", "a")
"""One in each of four shards."""
KEYS = SnapshotKeys(4)
LOST = KEYS.shard_of("us1")


@pytest.fixture
async def sharded(
    nats_url: str,
    valkey_url: str,
    quick_projector: None,  # noqa: ARG001
) -> AsyncGenerator[ProjectorRig]:
    async with projector_rig(nats_url, valkey_url, shards=4) as opened:
        yield opened
        await opened.aclose()


def sources() -> list[Source]:
    return [Source(cluster=name, rank=(5, 5)) for name in CLUSTERS]


async def synced(rig: ProjectorRig) -> None:
    """Two objects in each cluster, and a checkpoint behind all of it in each shard."""
    await rig.started(*CLUSTERS)
    await rig.publish(*(heartbeat(name) for name in CLUSTERS))
    for source in sources():
        await rig.publish_epoch(source, a=4, b=4)
    for name in CLUSTERS:
        await rig.synced(name)
    await eventually(rig.is_through)


async def names(rig: ProjectorRig) -> dict[str, list[str]]:
    return {name: await rig.snapshot.names(clusters=[name]) for name in CLUSTERS}


async def test_p13_a_shard_that_was_emptied_is_listed_again_and_no_other(
    sharded: ProjectorRig,
) -> None:
    rig = sharded
    await synced(rig)
    before = {name: await rig.resync_request(name) for name in CLUSTERS}
    lost = [key for key in await rig.snapshot.all_keys() if f"{{fleet:{LOST}}}" in key]
    await rig.redis.delete(*lost)
    await eventually(rig.snapshot.reader.generation)
    await eventually(lambda: rig.has_members(*CLUSTERS))
    await rig.publish(*(heartbeat(name) for name in CLUSTERS))
    record = before["us1"]
    await rig.resync_requested("no complete list", "us1", after=record.min_epoch if record else 0)
    assert await rig.state("us1") is ResourceState.LISTING
    for name in ("eu1", "hub", "a"):
        assert await rig.state(name) is ResourceState.SYNCED
        assert await rig.resync_request(name) == before[name]
    assert rig.deleted == []


async def test_p11_what_one_shard_has_lost_is_applied_again_to_it_alone(
    sharded: ProjectorRig,
) -> None:
    rig = sharded
    await synced(rig)
    checkpoint = KEYS.offset_checkpoint(LOST, PROJECTOR)
    low = int(await rig.redis.hget(checkpoint, "low") or 0)
    await rig.publish(*(source.added("c", 7) for source in sources()))
    await eventually(rig.is_through)
    await rig.stop()
    # The server of the shard goes back to what it had before `c`.
    place = ("us1", "core/pods")
    for name in (KEYS.guards(*place), KEYS.bodies(*place)):
        await rig.redis.hdel(name, "prod/c")
    await rig.redis.zrem(KEYS.order(*place), "prod/c")
    await rig.redis.hset(checkpoint, mapping={"low": low, "run": "the server before"})
    versions = {name: await version_of(rig, name) for name in CLUSTERS}
    with capture_logs() as lines:
        rig.start()
        await eventually(lambda: [log for log in lines if log["event"] == "store_settled"])
    assert await names(rig) == {name: ["a", "b", "c"] for name in CLUSTERS}
    beside = [log["beside"] for log in lines if log["event"] == "store_rolled_back"]
    assert beside == [f"shard {LOST}"]
    again = {name: await version_of(rig, name) for name in CLUSTERS}
    assert {name for name in CLUSTERS if again[name] != versions[name]} == {"us1"}


async def version_of(rig: ProjectorRig, cluster: str) -> int:
    entry = await rig.snapshot.reader.get(cluster, "core/pods", "prod", "c")
    return entry.counter if entry else 0


def take_away(rig: ProjectorRig, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the server of the shard `LOST` be away until the returned function is called."""
    redis, is_away = rig.connections.redis, True
    execute = cast("Any", redis.execute_command)

    async def failing(*args: Any, **options: Any) -> Any:
        if is_away and any(isinstance(arg, str) and f"{{fleet:{LOST}}}" in arg for arg in args):
            raise RedisConnectionError("its server is away")
        return await execute(*args, **options)

    def come_back() -> None:
        nonlocal is_away
        is_away = False

    monkeypatch.setattr(redis, "execute_command", failing)
    return come_back


@pytest.mark.slow
async def test_p9_a_shard_that_is_away_holds_up_no_other_and_nothing_is_lost(
    sharded: ProjectorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = sharded
    await synced(rig)
    come_back = take_away(rig, monkeypatch)
    with capture_logs() as lines:
        for version in range(10, 15):
            await rig.publish(*(source.modified("a", version) for source in sources()))
            for name in ("eu1", "hub", "a"):
                await eventually(partial(has, rig, name, version))
        assert await rig.snapshot.version("a", cluster="us1") == "4"
        await rig.publish_epoch(Source(cluster="hub", rank=(20, 20)), a=14)  # b is swept
        await eventually(lambda: [event.cluster for event in rig.deleted] == ["hub"])
        come_back()
        await eventually(lambda: has(rig, "us1", 14))
        await eventually(rig.is_through)
    assert {log["error"] for log in lines if log["event"] == "batch_failed"} <= {
        "its server is away",
        f"shard {LOST} of the snapshot does not answer",
    }


@pytest.mark.slow
async def test_p9_a_projector_starts_while_a_shard_is_away_and_sets_it_up_later(
    sharded: ProjectorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = sharded
    come_back = take_away(rig, monkeypatch)
    rig.provider.tell(*CLUSTERS)
    rig.start()
    others = {"eu1", "hub", "a"}
    await eventually(lambda: rig.has_members(*others))
    await rig.publish(*(source.added("a", 10) for source in sources()))
    for name in others:
        await eventually(partial(has, rig, name, 10))
    come_back()
    await eventually(lambda: rig.has_members(*CLUSTERS))
    await eventually(partial(has, rig, "us1", 10))
    await eventually(rig.is_through)


async def test_p9_a_shard_that_hangs_is_waited_for_a_while_only() -> None:
    handled: list[int] = []
    answers = asyncio.Event()

    async def handle(deliveries: Sequence[Delivery]) -> None:
        if any(".us1." in delivery.subject for delivery in deliveries):
            await answers.wait()
        handled.extend(delivery.sequence for delivery in deliveries)

    by_shard = ByShard(
        KEYS,
        handle,
        probe=lambda _shard: answers.wait(),
        patience=timedelta(milliseconds=100),
        probe_every=timedelta(milliseconds=20),
    )
    try:
        with pytest.raises(PartlyHandled) as caught:
            await by_shard.handle(batch_of(CLUSTERS))
        assert caught.value.failed == {1}
        assert sorted(handled) == [0, 2, 3]
        async with asyncio.timeout(0.05):  # now nobody waits for it any more
            with pytest.raises(PartlyHandled, match="does not answer"):
                await by_shard.handle(batch_of(CLUSTERS))
        answers.set()
        handled.clear()
        await eventually(lambda: is_handled(by_shard))
        assert 1 in handled
    finally:
        await by_shard.aclose()


async def is_handled(by_shard: ByShard) -> bool:
    try:
        await by_shard.handle(batch_of(CLUSTERS))
    except PartlyHandled:
        return False
    return True


async def test_p9_what_is_no_matter_of_a_shard_comes_again_as_a_whole() -> None:
    async def handle(_deliveries: Sequence[Delivery]) -> None:
        raise QueueUnavailableError("the queue is away")

    with pytest.raises(QueueUnavailableError):
        await ByShard(KEYS, handle, probe=answer).handle(batch_of(CLUSTERS))


async def answer(_shard: int) -> None: ...


def batch_of(clusters: Sequence[str]) -> list[Delivery]:
    return [
        Delivery(None, number, f"fleetbus.events.{name}.core.pods.prod.web.added", {})
        for number, name in enumerate(clusters)
    ]


async def test_p16_a_controller_stops_once_the_snapshot_has_another_number_of_shards(
    sharded: ProjectorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fleetbus.snapshot.offsets.checkpoint.CHECK_EVERY", timedelta(milliseconds=50)
    )
    rig = sharded
    await synced(rig)

    async def handle(_deliveries: Sequence[Delivery]) -> None: ...

    checkpoint = OffsetCheckpoint(
        bus=rig.bus,
        states=BusStates(rig.bus),
        redis=rig.redis,
        keys=KEYS,
        beside=Beside.queue("pods"),
        consumer="pods",
        durable=BoundDurable(PROJECTOR),
        filters=STREAM_SUBJECTS,
        handle=handle,
        is_rest_settled=SnapshotSettled(rig.redis, KEYS).check,
    )
    running = asyncio.create_task(checkpoint.run())
    try:
        await eventually(lambda: checkpoint.is_settled)
        await rig.redis.hset(KEYS.offset_checkpoint(LOST, PROJECTOR), "run", "the server before")
        await eventually(lambda: checkpoint.is_settled)  # its queue is on the same server
        await rig.stop()
        await rig.redis.delete(*[key for key in await rig.snapshot.all_keys() if "{fleet" in key])
        await eventually(lambda: not checkpoint.is_settled)  # there is no snapshot
        await Snapshot(rig.redis, shards=2).set_up(*CLUSTERS)
        # some checks
        await never(lambda: checkpoint.is_settled, timedelta(seconds=0.2))
        with pytest.raises(WrongShards, match="FLEETBUS_SHARDS=2"):
            await checkpoint.check()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_p11_a_controller_waits_for_a_shard_on_another_server_that_lost_writes(
    sharded: ProjectorRig,
) -> None:
    rig = sharded
    await synced(rig)
    await rig.stop()
    settled = SnapshotSettled(rig.redis, KEYS)
    assert await settled.check("the server of the queue")
    await rig.redis.hset(KEYS.offset_checkpoint(LOST, PROJECTOR), "run", "the server before")
    assert not await settled.check("the server of the queue")
    rig.start()
    await eventually(lambda: settled.check("the server of the queue"))


async def has(rig: ProjectorRig, cluster: str, version: int) -> bool:
    return await rig.snapshot.version("a", cluster=cluster) == str(version)


async def test_p9_a_batch_says_which_messages_were_not_handled() -> None:
    handled: list[str] = []

    async def handle(deliveries: Sequence[Delivery]) -> None:
        if any(".us1." in delivery.subject for delivery in deliveries):
            raise RedisConnectionError("its server is away")
        handled.extend(delivery.subject for delivery in deliveries)

    by_shard = ByShard(KEYS, handle, probe=answer)
    batch = batch_of((*CLUSTERS, *CLUSTERS))
    with pytest.raises(PartlyHandled, match="its server is away") as caught:
        await by_shard.handle(batch)
    assert caught.value.failed == {1, 5}
    assert len(handled) == 6
    with pytest.raises(PartlyHandled, match="does not answer"):
        await by_shard.handle(batch)  # not tried again at once
    await by_shard.aclose()
