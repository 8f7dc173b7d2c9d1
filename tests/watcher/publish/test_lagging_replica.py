"""A replica of the stream that lags behind is no loss of events (rules W9, W10, B19).

Direct reads are answered by the test, as by a replica; all else is the real server, the leader.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from fleetbus.bus.connection import Bus, NoAnswer, connected
from fleetbus.bus.window import open_window
from fleetbus.process.clock import utc_now
from fleetbus_proto.events import Heartbeat, Incarnation, ResourceStatus
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import STREAM, status_subject
from fleetbus_watcher.errors import EventsLost
from fleetbus_watcher.publish.checkpoint import HeartbeatAt
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.timing import USUAL, WatcherTiming

SUBJECT = status_subject("c", "r1")
PODS = Resource("core", "v1", "pods")


class Replica:
    """Answers direct reads with the state of some reads ago."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.lag = 0

    async def start(self) -> None:
        await self._client.subscribe(f"$JS.API.DIRECT.GET.{STREAM}.>", cb=self._answer)
        await self._client.flush()

    async def _answer(self, message: Msg) -> None:
        stream = self._client.jetstream()
        try:
            message_stored = await stream.get_last_msg(STREAM, SUBJECT)
            if self.lag > 0:
                self.lag -= 1
                message_stored = await stream.get_msg(STREAM, (message_stored.seq or 0) - 1)
        except NotFoundError:
            await self._client.publish(message.reply, headers={"Status": "404"})
            return
        head = {"Nats-Sequence": str(message_stored.seq)}
        await self._client.publish(message.reply, message_stored.data or b"", headers=head)


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        yield client


@pytest.fixture
async def replica(nats: Client) -> Replica:
    config = {"name": STREAM, "subjects": ["fleetbus.>"], "allow_msg_ttl": True}
    await nats.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode())
    lagging = Replica(nats)
    await lagging.start()
    return lagging


@pytest.fixture
async def detector(bus: Bus, replica: Replica) -> AsyncGenerator[LossDetector]:
    del replica  # the stream comes first
    async with detecting(bus) as created:
        yield created


@asynccontextmanager
async def detecting(
    bus: Bus, name: str = "r1", timing: WatcherTiming = USUAL
) -> AsyncGenerator[LossDetector]:
    async with open_window(bus) as window:
        yield LossDetector(
            bus=bus,
            publisher=Publisher(bus=bus, window=window),
            cluster="c",
            replica=ReplicaName(name, "c"),
            timing=timing,
        )


def beat() -> Heartbeat:
    status = ResourceStatus(
        group="core",
        version="v1",
        resource="pods",
        kind="Pod",
        state="watching",
        resource_version="1",
    )
    return Heartbeat(
        cluster="c",
        replica="r1",
        boot="b",
        incarnation=Incarnation(1, "uid"),
        connected=True,
        resources=[status],
        observed_at=utc_now(),
    )


async def publish(detector: LossDetector) -> HeartbeatAt:
    at = await detector.publish(beat())
    assert at is not None
    return at


async def test_w10_a_heartbeat_that_a_replica_does_not_have_yet_is_not_lost(
    detector: LossDetector, replica: Replica
):
    await publish(detector)
    await publish(detector)
    replica.lag = 5
    await detector.verify()
    assert not replica.lag


async def test_w10_nor_is_the_heartbeat_of_a_peer_replica(
    bus: Bus, detector: LossDetector, replica: Replica
):
    await publish(detector)
    at = await publish(detector)
    async with detecting(bus, "r2") as peer:
        replica.lag = 5
        assert await peer.check(at, PODS, "")
        with pytest.raises(EventsLost):
            await peer.check(HeartbeatAt(SUBJECT, at.seq + 1), PODS, "")


async def test_w10_a_replica_that_never_catches_up_proves_nothing(bus: Bus, replica: Replica):
    async with detecting(bus, timing=WatcherTiming(stream_lag=timedelta(seconds=0.2))) as detector:
        await publish(detector)
        await publish(detector)
        replica.lag = 1_000
        with pytest.raises(NoAnswer, match="lags behind its leader"):
            await detector.verify()


async def test_w9_the_question_to_the_leader_stores_nothing(detector: LossDetector, nats: Client):
    await publish(detector)
    await detector.verify()
    info = await nats.jetstream().stream_info(STREAM)
    assert info.state.messages == 1
