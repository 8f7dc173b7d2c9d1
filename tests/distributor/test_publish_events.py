"""Events on their way to the bus: a real nats-server, which may be away (rule D27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.msg import Msg
from prometheus_client import REGISTRY

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import call_jetstream, ensure_distribution
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_distributor.hub.publish_events import EventPublisher
from fleetbus_proto.distribution import DistributionEvent, decode_distribution_event
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, DistributionVerb
from support.eventually import eventually


def event(cluster: str, verb: DistributionVerb = DistributionVerb.APPLIED) -> DistributionEvent:
    return DistributionEvent(
        namespace="shop", name="web", uid="u", generation=1, cluster=cluster, event=verb, time="now"
    )


@asynccontextmanager
async def publishing(publisher: EventPublisher) -> AsyncGenerator[None]:
    task = asyncio.create_task(publisher.run(), name="publisher")
    try:
        yield
    finally:
        await cancel_and_wait(task)


def count(outcome: str) -> float:
    value = REGISTRY.get_sample_value("fleetbus_distribution_events_total", {"outcome": outcome})
    return value or 0.0


async def stored(bus: Bus) -> int:
    info = await call_jetstream(bus, f"STREAM.INFO.{DISTRIBUTION_STREAM}")
    return int(info["state"]["messages"])


async def has(bus: Bus, clusters: set[str]) -> bool:
    """Whether the stream has events of these clusters and no other."""
    request = {"subjects_filter": ">"}
    info = await call_jetstream(bus, f"STREAM.INFO.{DISTRIBUTION_STREAM}", request)
    return {subject.split(".")[4] for subject in info["state"].get("subjects", ())} == clusters


async def test_d27_a_round_that_finds_the_same_again_publishes_it_once(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path) as server,
        connected(server.url, name="test") as bus,
    ):
        await ensure_distribution(bus)
        received: list[tuple[str, DistributionEvent | None]] = []

        async def receive(message: Msg) -> None:
            received.append((message.subject, decode_distribution_event(message.data)))

        await bus.nc.subscribe("fleetbus.distribution.>", cb=receive)
        publisher, before = EventPublisher(bus), count("published")
        async with publishing(publisher):
            publisher.offer([event("eu1"), event("")], "7")
            publisher.offer([event("eu1")], "7")  # found again from the same version
            await eventually(lambda: count("published") == before + 3)
            assert await stored(bus) == 2
            publisher.offer([event("eu1")], "8")
            await eventually(lambda: count("published") == before + 4)
            assert await stored(bus) == 3
        assert received[0] == ("fleetbus.distribution.shop.web.eu1.applied", event("eu1"))
        assert received[1] == ("fleetbus.distribution.shop.web._fleet.applied", event(""))
        other = EventPublisher(bus)
        async with publishing(other):
            other.offer([event("eu1")], "8")
            await eventually(lambda: count("published") == before + 5)
        assert await stored(bus) == 4, "the ids of a process are its secret"


async def test_d27_while_the_bus_is_away_the_newest_are_kept_and_the_lost_are_counted(
    tmp_path: Path,
):
    async with (
        nats_server(store_dir=tmp_path) as server,
        connected(server.url, name="test") as bus,
    ):
        await ensure_distribution(bus)
        publisher, lost = EventPublisher(bus, capacity=2), count("lost")
        async with publishing(publisher):
            await server.stop()
            await eventually(lambda: not bus.is_connected)
            publisher.offer([event("a")], "7")
            await asyncio.sleep(0)  # it waits for the connection, with this one
            publisher.offer([event("b"), event("c"), event("d")], "7")
            assert count("lost") == lost + 1
            await server.restart()
            await eventually(lambda: has(bus, {"a", "c", "d"}))


async def test_d27_what_waits_when_the_process_ends_is_sent(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path) as server,
        connected(server.url, name="test") as bus,
    ):
        await ensure_distribution(bus)
        publisher = EventPublisher(bus)
        async with publishing(publisher):
            publisher.offer([event("eu1")], "7")
            await eventually(lambda: stored(bus))
            publisher.offer([event("eu1")], "8")
        assert await stored(bus) == 2
