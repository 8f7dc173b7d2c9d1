"""W7: a hundred clusters list at once, and the stream drops nothing that is not read yet.

The asking is the watcher's own code; the projector, NATS and Valkey are real. Valkey stands still
in the middle, so that the projector reads nothing while all want to publish.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from nats.aio.msg import Msg
from prometheus_client import REGISTRY

from fleetbus.bus.connection import subscribed
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.window import Window, open_window
from fleetbus_proto import codec, headers
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import kv_resync
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import control_subject
from fleetbus_watcher.follow.grant_client import GrantClient
from fleetbus_watcher.publish.replica_name import ReplicaName
from support.eventually import eventually
from support.rigs.projector import ProjectorRig, subject_of
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

PODS = parse_resource("v1/pods")
CLUSTERS = 100
OBJECTS = 10
BODY = b'{"metadata":{"name":"a","padding":"' + b"x" * 12_000 + b'"}}'
SIZE = OBJECTS * (len(BODY) + 700)
MAX_BYTES = 1024**2  # already ten lists are larger, and all are twelve times as large


@pytest.mark.slow
async def test_w7_a_hundred_clusters_ask_at_once_and_nothing_unread_leaves_the_stream(
    rig: ProjectorRig,
):
    rig.settings |= {"stream_max_bytes": MAX_BYTES, "incomplete_wait": timedelta(minutes=1)}
    names = [f"c{number:02}" for number in range(CLUSTERS)]
    await rig.started(*names)
    async with open_window(rig.bus) as window:
        await rig.redis.execute_command("CLIENT", "PAUSE", 700, "WRITE")
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(nothing_unread_is_dropped(rig, applied()))
            storm = [group.create_task(list_once(rig, window, name)) for name in names]
            await asyncio.wait(storm)
            guard.cancel()
    await eventually(lambda: are_synced(rig, names), timedelta(seconds=20))
    for name in names:  # every first list was complete: none was asked for again
        assert await rig.connections.kv.get(kv_resync(name, "core", "pods")) is None
    info = await stream_info(rig.bus)
    assert info is not None
    assert info["state"]["first_seq"] > CLUSTERS * OBJECTS / 2, "the stream was full"


async def list_once(rig: ProjectorRig, window: Window, name: str) -> None:
    """The messages of a watcher for one epoch."""
    grants = GrantClient(
        kv=rig.connections.kv,
        cluster=name,
        replica=ReplicaName("r1", name),
        patience=timedelta(minutes=1),
    )
    source = Source(cluster=name, rank=(9, 7))

    async def on_message(_: Msg) -> None:
        grants.wake()

    async with (
        subscribed(rig.bus, control_subject(name), on_message),
        grants.granted(PODS, "", SIZE, lambda: None) as grant,
    ):
        await grant.begin(7)
        async with asyncio.TaskGroup() as group:
            for number in range(OBJECTS):
                event = source.listed(f"o{number}", number + 1, body=BODY)
                group.create_task(send(window, event))
        await send(window, source.end(OBJECTS))
        grant.is_complete = True


async def send(window: Window, message: Event | EpochEnd) -> None:
    ack = await window.send(
        subject_of(message), codec.encode(message), headers.build(message, MESSAGE_KEY)
    )
    assert ack.error is None


async def nothing_unread_is_dropped(rig: ProjectorRig, before: float) -> None:
    """The ack floor proves nothing: the server moves it over what it has dropped."""
    while True:
        info = await stream_info(rig.bus)
        assert info is not None
        assert info["state"]["first_seq"] <= applied() - before + 1
        await asyncio.sleep(0.02)  # between two looks


def applied() -> float:
    """Return how many messages the projector has taken from the stream, all in their order."""
    name = ("fleetbus_events_consumed_total", {"consumer": "projector"})
    return REGISTRY.get_sample_value(*name) or 0


async def are_synced(rig: ProjectorRig, names: list[str]) -> bool:
    for name in names:
        record = await rig.record(name)
        if record is None or record.epoch != "9 7":
            return False
    return True
