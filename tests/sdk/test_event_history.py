"""`fleetbus events` goes on where it was when NATS was restarted, with its streams or without."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from eventually import eventually

from fleetbus.bus import Bus, connected, ensure_stream
from fleetbus.cli.history import History
from fleetbus_devfleet.servers import NatsServer, nats_server


async def publish(bus: Bus, *names: str) -> None:
    for name in names:
        answer = await bus.request(f"fleetbus.events.a.core.pods.ns.{name}.added", name.encode())
        assert b'"error"' not in answer.data


async def read(history: History, count: int) -> list[str]:
    async with asyncio.timeout(15):
        found = [await history.next() for _ in range(count)]
    return [message.data.decode() for message in found if message is not None]


async def restart(server: NatsServer, bus: Bus, *, wiped: bool) -> None:
    before = bus.disconnects
    server.kill()
    await eventually(lambda: bus.disconnects > before)
    if wiped:
        shutil.rmtree(server.store_dir / "jetstream")
    await server.restart()
    await bus.wait_connected()


@pytest.mark.parametrize("wiped", [False, True])
async def test_who_follows_hears_what_comes_after_a_restart_and_nothing_twice(
    tmp_path: Path, *, wiped: bool
):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        connected(server.url, name="reader") as bus,
    ):
        await ensure_stream(bus)
        start = datetime.now(UTC) - timedelta(minutes=1)
        history = History(bus, subject="fleetbus.events.>", start=start, follow=True)
        await publish(bus, "one", "two")
        await history.open()
        assert await read(history, 2) == ["one", "two"]
        await restart(server, bus, wiped=wiped)
        await ensure_stream(bus)
        await publish(bus, "three")
        assert await read(history, 1) == ["three"]
        await history.aclose()


async def test_who_does_not_follow_comes_to_the_end_over_a_restart(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        connected(server.url, name="reader") as bus,
    ):
        await ensure_stream(bus)
        start = datetime.now(UTC) - timedelta(minutes=1)
        history = History(bus, subject="fleetbus.events.>", start=start, follow=False)
        await publish(bus, "one", "two")
        await history.open()
        assert await read(history, 1) == ["one"]
        await restart(server, bus, wiped=False)
        assert await read(history, 1) == ["two"]
        async with asyncio.timeout(15):
            assert await history.next() is None
        await history.aclose()
