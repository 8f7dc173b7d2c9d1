"""W9: a heartbeat fits into a message of the bus, however much there is to report."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetbus.bus.window import open_window
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto import codec
from fleetbus_proto.events import Heartbeat, Incarnation, ResourceStatus, WatchSet
from fleetbus_watcher.publish.heartbeat_size import fit
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName
from support.rigs.watcher import Rig, rig_for
from support.rows import each_row

ROOM = 100_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    """On a NATS as most run it."""
    async with (
        nats_server(store_dir=tmp_path / "nats", max_payload=1024**2) as server,
        rig_for(server.url) as opened,
    ):
        yield opened


def failing(number: int, message: str = "forbidden: " + "x" * 800) -> ResourceStatus:
    return ResourceStatus(
        group="example.com",
        version="v1",
        resource=f"r{number:05}",
        kind="Thing",
        state="failing",
        reason="Forbidden",
        message=message,
        resource_version="12345",
        last_received="2026-01-01T00:00:00.000000Z",
    )


def beat(*resources: ResourceStatus, **fields: Any) -> Heartbeat:
    fields_given: dict[str, Any] = {"connected": True, "watch_set": WatchSet(all=True), **fields}
    return Heartbeat(
        cluster="alpha",
        replica="r1",
        boot="b",
        incarnation=Incarnation(1, "u"),
        resources=list(resources),
        observed_at="2026-01-01T00:00:00.000000Z",
        **fields_given,
    )


async def test_w9_a_heartbeat_of_two_thousand_failing_scopes_is_stored(rig: Rig):
    async with open_window(rig.bus) as window:
        publisher = Publisher(bus=rig.bus, window=window)
        detector = LossDetector(
            bus=rig.bus, publisher=publisher, cluster="alpha", replica=ReplicaName("r1", "alpha")
        )
        large = beat(*map(failing, range(2_000)))
        assert len(codec.encode(large)) > rig.bus.max_payload
        assert await detector.publish(large) is not None
        assert await detector.publish(large) is not None
    (*_, stored) = await rig.heartbeats()
    assert len(stored.resources) == 2_000
    assert stored.watch_set == large.watch_set
    assert stored.message == "its watcher truncated 2000 strings of this heartbeat"


def test_w9_a_heartbeat_that_fits_is_left_alone():
    small = beat(failing(1))
    assert fit(small, ROOM) is small


def test_w9_long_messages_are_shortened_and_counted_and_short_ones_stay():
    reported = [failing(n, "é" * 1000) for n in range(90)] + [
        failing(n, "short") for n in range(90, 95)
    ]
    fitted = fit(beat(*reported, reason="NotReady", message="etcd"), ROOM)
    assert len(codec.encode(fitted)) <= ROOM
    assert [status.message for status in fitted.resources[90:]] == ["short"] * 5
    assert all(100 < len(status.message) < 1000 for status in fitted.resources[:90])
    assert all(status.message.endswith("…") for status in fitted.resources[:90])
    assert fitted.reason == "NotReady"
    assert fitted.message == "etcd; its watcher truncated 90 strings of this heartbeat"


def test_p6_a_heartbeat_that_leaves_scopes_out_proves_nothing_of_them():
    fitted = fit(beat(*map(failing, range(2_000))), ROOM)
    assert len(codec.encode(fitted)) <= ROOM
    assert fitted.watch_set is None
    left_out = 2_000 - len(fitted.resources)
    assert 0 < left_out < 2_000
    assert fitted.message.startswith(f"its watcher omitted {left_out} of 2000 scopes")


def test_w9_every_size_fits_and_nothing_is_left_out_without_need():
    reported = beat(*map(failing, range(20)))
    full_size = len(codec.encode(reported))
    for room in range(2_000, full_size, 97):
        fitted = fit(reported, room)
        assert room - 1_200 < len(codec.encode(fitted)) <= room
    assert fit(reported, full_size) is reported


@each_row(
    "fields",
    [
        {"message": "x" * ROOM},
        {"server_version": "x" * ROOM},
        {"platform": "x" * ROOM},
        {"invalid": ["x" * 1000] * 1000},
        {"invalid": ["x" * ROOM]},
        {"reason": "x" * ROOM},
        {"watch_set": WatchSet(served=[f"example.com/r{n:05}" for n in range(10_000)])},
        {"resources": [msgspec.structs.replace(failing(1), kind="x" * ROOM), failing(2)]},
    ],
)
def test_w9_no_part_of_a_heartbeat_makes_it_too_large(fields: dict[str, Any]):
    fitted = fit(msgspec.structs.replace(beat(failing(3)), **fields), ROOM)
    assert len(codec.encode(fitted)) <= ROOM
    assert fitted.connected
    assert "its watcher" in fitted.message
