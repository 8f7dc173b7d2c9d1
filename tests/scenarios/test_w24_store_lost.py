"""The store is lost while objects are deleted: each deletion is on the bus all the same (W24).

The observer is a plain subscriber: it keeps nothing, and knows of no epochs.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from fleetbus.bus.connection import connected
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_proto.subjects import parse_event_subject
from support.eventually import eventually
from support.rigs.fleet import fleet_rig

MAPS = "v1/configmaps"
NAMES = [f"m{number:02}" for number in range(80)]


@pytest.mark.slow
async def test_w24_objects_deleted_while_the_store_is_lost_are_each_reported(
    tmp_path: Path, nats_url: str
):
    reported: set[str] = set()
    ends: list[Msg] = []

    async def on_deleted(message: Msg) -> None:
        reported.add(parse_event_subject(message.subject).name)

    async def on_end(message: Msg) -> None:
        ends.append(message)

    async with (
        valkey_server(dir=tmp_path / "valkey") as valkey,
        fleet_rig(
            "a", folder=tmp_path, nats_url=nats_url, valkey_url=valkey.url, resources=(MAPS,)
        ) as rig,
        connected(nats_url, name="subscriber") as bus,
    ):
        await bus.nc.subscribe("fleetbus.events.a.core.configmaps.*.*.deleted", cb=on_deleted)
        await bus.nc.subscribe("fleetbus.epochs.a.core.configmaps", cb=on_end)
        cluster = rig.clusters["a"]
        for name in NAMES:
            cluster.create(MAPS, {"metadata": {"name": name}}, "default")
        rig.start_watcher("a", heartbeat_busy=timedelta(milliseconds=100))
        rig.start_reconciler()
        await rig.synced("core/configmaps")
        assert len(ends) == 1
        for number, name in enumerate(NAMES):
            cluster.delete(MAPS, "default", name)
            await asyncio.sleep(0.05)  # the pace of the load
            if number == 10:
                valkey.kill()
            if number == 15:
                await valkey.restart()
        await eventually(lambda: len(ends) >= 2, timedelta(seconds=30))
        cluster.create(MAPS, {"metadata": {"name": "last"}}, "default")
        cluster.delete(MAPS, "default", "last")
        await eventually(lambda: "last" in reported)
        await eventually(lambda: reported == {*NAMES, "last"})
