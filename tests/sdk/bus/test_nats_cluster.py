"""Three nats-servers that store everything: what a server that dies must not change (B12, B13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from fleetbus.bus.acks import Ack
from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import Misconfigured, StreamLimits, ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import open_window
from fleetbus.errors import BusError
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from support.eventually import eventually
from support.servers.nats_cluster import (
    NatsCluster,
    consumer_leader,
    nats_cluster,
    stream_leader,
)

THREE = StreamLimits(replicas=3)
WITHIN = timedelta(seconds=45)
"""An election takes up to 9 s, a message that was on its way to the dead server 30 s."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[NatsCluster]:
    async with nats_cluster(tmp_path) as started:
        yield started


async def create_all(bus: Bus) -> None:
    await ensure_stream(bus, THREE)
    await ensure_bucket(bus, THREE)
    await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))


async def is_created(bus: Bus) -> bool:
    try:
        await create_all(bus)
    except Misconfigured:
        raise
    except BusError:  # the servers have just met
        return False
    return True


@asynccontextmanager
async def prepared(cluster: NatsCluster) -> AsyncGenerator[Bus]:
    async with connected(cluster.url, name="test") as bus:
        await eventually(lambda: is_created(bus), WITHIN)
        await cluster.healthy()
        yield bus


async def test_b12_stream_bucket_and_durables_are_stored_on_as_many_servers_as_set(
    cluster: NatsCluster,
):
    async with prepared(cluster) as bus:
        for info in (await ensure_stream(bus, THREE), await ensure_bucket(bus, THREE)):
            assert len(info["cluster"]["replicas"]) == 2
        durable = await consumer_info(bus, PROJECTOR)
        assert durable is not None
        assert len(durable["cluster"]["replicas"]) == 2
        with pytest.raises(Misconfigured, match="num_replicas is 3, and 1 is needed; nothing is"):
            await ensure_stream(bus, StreamLimits(replicas=1))


async def test_b12_replicas_without_a_cluster_are_refused_with_what_to_do(nats_url: str):
    async with connected(nats_url, name="test") as bus:
        with pytest.raises(Misconfigured, match=r"3 replicas need a cluster of .*BUS_REPLICAS=1"):
            await ensure_stream(bus, THREE)


async def test_b13_after_a_kill_the_client_uses_the_other_addresses_with_its_credentials(
    tmp_path: Path,
):
    more = 'authorization { user: u, password: "p" }'
    async with nats_cluster(tmp_path, ("n1", "n2"), more=more) as cluster:
        first, second = (cluster.members[name].address for name in ("n1", "n2"))
        async with connected(f"nats://u:p@{first}, {second}", name="test") as bus:
            for _ in range(2):
                await eventually(lambda: bus.is_connected)
                assert len(bus.nc.servers) == 2  # what servers advertise is not added
                used = bus.nc.connected_url
                assert used is not None
                (server,) = [m for m in cluster.members.values() if m.port == used.port]
                server.kill()
                await eventually(lambda: bus.disconnects and bus.is_connected)
                assert not bus.has_failed
                server.start()
                await eventually(lambda s=server: asyncio.to_thread(s.monitor, "varz"), WITHIN)


async def test_an_empty_address_is_refused():
    with pytest.raises(BusError, match="address 2 of 3 is empty"):
        async with connected("nats://u:p@a:4222,,b", name="test"):
            pass


@pytest.mark.full
async def test_b6_b7_a_killed_leader_loses_no_event_and_stores_none_twice(cluster: NatsCluster):
    acks: dict[int, Ack] = {}
    handled: list[int] = []

    async def handle(deliveries: Sequence[Delivery]) -> None:
        handled.extend(delivery.sequence for delivery in deliveries)

    async with prepared(cluster) as bus, open_window(bus) as window:
        consumer = Consumer(bus, stream=STREAM, durable=PROJECTOR, handle=handle)
        consuming = asyncio.create_task(consumer.run())
        leaders = {await consumer_leader(bus, PROJECTOR), await stream_leader(bus, STREAM)}

        async def publish(count: int) -> None:
            for number in range(len(acks), len(acks) + count):
                head = {"Nats-Msg-Id": str(number)}
                await window.publish(
                    "fleetbus.status.c.r", b"x", head, lambda a, n=number: acks.update({n: a})
                )
                await asyncio.sleep(0.002)  # the pace of the load
            assert await window.drain(WITHIN)

        await publish(200)
        killed = cluster.members[leaders.pop()]
        killed.kill()
        await publish(300)
        assert [ack for ack in acks.values() if ack.error] == []
        assert sorted({ack.seq for ack in acks.values()}) == list(range(1, 501))
        await eventually(lambda: {*handled} == {*range(1, 501)}, WITHIN)
        killed.start()
        await cluster.healthy()
        await create_all(bus)  # nothing has drifted
        consuming.cancel()
        await asyncio.wait([consuming])


@pytest.mark.full
async def test_b6_without_a_quorum_a_write_fails_and_later_ones_find_what_was_stored(
    cluster: NatsCluster,
):
    async with prepared(cluster) as bus:
        kv = KeyValue(bus)
        revision = await kv.put("eu1.x", b"1")
        dead = cluster.others(next(iter(cluster.members)))
        for member in dead:
            member.kill()
        with pytest.raises(BusError):
            await kv.update("eu1.x", b"2", revision)
        for member in dead:
            member.start()
        await cluster.healthy()

        async def is_written() -> bool:
            """By compare-and-set after a read, whether the first attempt was stored or not."""
            try:
                entry = await kv.get("eu1.x")
                assert entry is not None
                assert entry.value in (b"1", b"2")
                return await kv.update("eu1.x", b"3", entry.revision) is not None
            except BusError:
                return False

        await eventually(is_written, WITHIN)
        found = await kv.get("eu1.x")
        assert found is not None
        assert found.value == b"3"
