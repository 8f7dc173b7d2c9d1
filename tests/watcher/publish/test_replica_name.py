"""Two processes with one name harm nothing, and end up with two names: rule W25."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_stream
from fleetbus.bus.window import open_window
from fleetbus.process.clock import utc_now
from fleetbus_emulator.apiserver import Expire
from fleetbus_proto.events import Heartbeat, Incarnation
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import status_subject
from fleetbus_watcher.publish.checkpoint import HeartbeatAt
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName, renamed
from support.eventually import eventually
from support.processes.watcher import process
from support.rigs.watcher import Rig


def losses() -> float:
    labels = {"cluster": "alpha", "alarm": "events_lost"}
    return REGISTRY.get_sample_value("fleetbus_watcher_alarms_total", labels) or 0.0


async def numbers(rig: Rig) -> set[int]:
    return {beat.incarnation.number for beat in await rig.heartbeats()}


async def names(rig: Rig) -> set[str]:
    return {beat.replica for beat in await rig.heartbeats()}


async def is_renamed(rig: Rig) -> bool:
    return len(await names(rig)) == 2


def test_w25_one_heartbeat_of_a_process_that_may_have_died_replaces_no_name():
    name = ReplicaName("r1", "alpha")
    assert not name.is_shared_with("dead")
    assert not name.is_shared_with("dead, too")
    assert name.is_shared_with("dead")
    name.replace()
    assert name.current == renamed("r1", name.boot) != "r1"
    status_subject("alpha", name.current)


@pytest.mark.slow
async def test_w25_two_watchers_with_one_name_lose_nothing_and_get_two_names(rig: Rig):
    rig.write("a")
    before = losses()
    async with rig.watching(replica="host"):
        rig.start(replica="host")
        # Each reads checkpoints that name heartbeats of the other.
        for number in range(8):
            rig.cluster.faults.add(Expire("stream"), verb="watch", count=2)
            rig.write("b", str(number))
            await eventually(rig.is_mirrored)
        await _write_until_renamed(rig)
        rig.write("last")
        await eventually(rig.is_mirrored)
    assert losses() == before
    assert len(await numbers(rig) - {0}) == 1
    assert "host" in await names(rig)


class Named:
    """One of several processes with a name: it publishes heartbeats and verifies them."""

    def __init__(self, bus: Bus, publisher: Publisher) -> None:
        self.bus = bus
        self._name = ReplicaName("host", "alpha")
        self.detector = LossDetector(
            bus=bus, publisher=publisher, cluster="alpha", replica=self._name
        )

    async def publish(self) -> HeartbeatAt:
        beat = Heartbeat(
            cluster="alpha",
            replica="host",
            boot=self._name.boot,
            incarnation=Incarnation(1, "u"),
            connected=True,
            resources=[],
            observed_at=utc_now(),
        )
        at = await self.detector.publish(beat)
        assert at is not None
        return at


@asynccontextmanager
async def named(nats_url: str) -> AsyncGenerator[Named]:
    async with connected(nats_url, name="test") as bus, open_window(bus) as window:
        await ensure_stream(bus)
        yield Named(bus, Publisher(bus=bus, window=window))


async def test_w25_a_heartbeat_that_is_adopted_while_it_is_verified_is_not_lost(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with named(nats_url) as ours, named(nats_url) as other:
        await ours.publish()
        theirs = await other.publish()
        reads, may_read = asyncio.Event(), asyncio.Event()
        request = ours.bus.request

        async def hold_first_read(subject: str, *args: Any, **options: Any) -> Any:
            if ".DIRECT.GET." in subject and not reads.is_set():
                reads.set()
                await may_read.wait()
            return await request(subject, *args, **options)

        monkeypatch.setattr(ours.bus, "request", hold_first_read)
        checking = asyncio.create_task(
            ours.detector.check(theirs, parse_resource("v1/configmaps"), "all")
        )
        await reads.wait()
        await ours.publish()
        may_read.set()
        assert await checking


async def test_w25_three_watchers_with_one_name_get_three(rig: Rig):
    async with rig.watching(replica="host"):
        rig.start(replica="host")
        rig.start(replica="host")
        for number in range(100):
            rig.write("b", str(number))
            await eventually(rig.is_mirrored)
            if len(await names(rig)) == 3:
                break
            await asyncio.sleep(0.1)  # a heartbeat is due
    assert len(await names(rig)) == 3
    assert len(await numbers(rig) - {0}) == 1


@pytest.mark.slow
async def test_w25_a_watcher_that_follows_a_killed_one_has_its_name_at_once(
    rig: Rig, nats_url: str, tmp_path: Path
):
    rig.write("a")
    async with process(rig, tmp_path, nats_url, replica="host") as killed:
        await eventually(rig.checkpoint, timedelta(seconds=30))
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        async with rig.watching_on(replica="host"):
            for number in range(5):
                rig.write("b", str(number))
                await eventually(rig.is_mirrored)
                await asyncio.sleep(0.15)  # a heartbeat is due
    assert await names(rig) == {"host"}
    assert len(rig.requests("list")) == 1


async def _write_until_renamed(rig: Rig) -> None:
    for number in range(100):
        rig.write("c", str(number))
        await eventually(rig.is_mirrored)
        if await is_renamed(rig):
            return
        await asyncio.sleep(0.1)  # a heartbeat is due
    raise AssertionError("both still have the same name")
