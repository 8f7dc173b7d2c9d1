"""`fleetbus events` goes on where it was when NATS was restarted, with its streams or without."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_stream
from fleetbus.errors import BusError, ConfigError
from fleetbus_cli.events.events import parse_since
from fleetbus_cli.events.history import History
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_proto import codec, headers
from fleetbus_proto.admission import subject_of
from support.eventually import eventually
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY


async def publish(bus: Bus, *names: str) -> None:
    for name in names:
        answer = await bus.request(f"fleetbus.events.a.core.pods.ns.{name}.added", name.encode())
        assert b'"error"' not in answer.data


async def opened(bus: Bus, *names: str, follow: bool) -> History:
    """Events of these objects in the stream."""
    await ensure_stream(bus)
    start = datetime.now(UTC) - timedelta(minutes=1)
    history = History(bus, subject="fleetbus.events.>", start=start, follow=follow)
    await publish(bus, *names)
    await history.open()
    return history


async def read(history: History, count: int) -> list[str]:
    async with asyncio.timeout(15):
        messages = [await history.next() for _ in range(count)]
    return [message.data.decode() for message in messages if message is not None]


async def restart(server: NatsServer, bus: Bus, *, wiped: bool) -> None:
    before = bus.disconnects
    server.kill()
    await eventually(lambda: bus.disconnects > before)
    if wiped:
        shutil.rmtree(server.store_dir / "jetstream")
    await server.restart()
    await bus.wait_connected()


@pytest.mark.parametrize("wiped", [False, True])
async def test_a_follower_reads_on_after_a_restart_without_duplicates(
    tmp_path: Path, *, wiped: bool
):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        connected(server.url, name="reader") as bus,
    ):
        history = await opened(bus, "one", "two", follow=True)
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
        history = await opened(bus, "one", "two", follow=False)
        assert await read(history, 1) == ["one"]
        await restart(server, bus, wiped=False)
        assert await read(history, 1) == ["two"]
        async with asyncio.timeout(15):
            assert await history.next() is None
        await history.aclose()


@pytest.mark.parametrize("count", [200, 201, 400])
@pytest.mark.parametrize("follow", [False, True])
async def test_a_full_batch_is_followed_by_the_next_one_at_once(
    tmp_path: Path, *, count: int, follow: bool
):
    """The server ends a full batch without a status message: the reader has to count."""
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        connected(server.url, name="reader") as bus,
    ):
        history = await opened(bus, *map(str, range(count)), follow=follow)
        assert await read(history, count) == [str(number) for number in range(count)]
        if follow:
            await publish(bus, "later")
            assert await read(history, 1) == ["later"]
        else:
            async with asyncio.timeout(15):
                assert await history.next() is None
        await history.aclose()


async def test_who_does_not_follow_waits_no_longer_for_a_bus_that_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_cli.events.history.RECONNECT_SECONDS", 0.2)
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        connected(server.url, name="reader") as bus,
    ):
        history = await opened(bus, "one", follow=False)
        server.kill()
        await eventually(lambda: not bus.is_connected)
        async with asyncio.timeout(15):
            with pytest.raises(BusError, match="lost the connection to NATS"):
                await history.next()
            await history.aclose()


async def test_b15_the_command_outlives_a_killed_bus_and_stops_at_once_when_it_stays_away(
    tmp_path: Path,
):
    async with nats_server(store_dir=tmp_path / "nats") as server:
        async with connected(server.url, name="writer") as bus:
            await ensure_stream(bus)
            command = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("fleetbus")),
                *("events", "--follow", "--since", "1m", "-o", "json", "--nats-url", server.url),
                stdout=PIPE,
                stderr=PIPE,
            )
            try:
                await tell(bus, "one")
                assert await printed_name(command) == "one"
                await restart(server, bus, wiped=False)
                await tell(bus, "two")
                assert await printed_name(command) == "two"
            except BaseException:
                command.kill()
                raise
        server.kill()
        await asyncio.sleep(0.3)  # so long that it tries to come back
        command.terminate()
        out, err = await asyncio.wait_for(command.communicate(), 15)
    assert (command.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def tell(bus: Bus, name: str) -> None:
    event = Source(cluster="a").added(name, 1)
    body, message_headers = codec.encode(event), headers.build(event, MESSAGE_KEY)
    await bus.request(
        f"fleetbus.events.a.core.pods.prod.{name}.added", body, headers=message_headers
    )


async def printed_name(command: asyncio.subprocess.Process) -> str:
    assert command.stdout is not None
    line = await asyncio.wait_for(command.stdout.readline(), 20)
    return json.loads(line)["name"]


@pytest.mark.parametrize("output", ["table", "json"])
async def test_an_event_brings_nothing_that_a_terminal_obeys(nats_url: str, output: str) -> None:
    event = Source(cluster="a").added("x\x1b[2J\x9b2J", 7)
    hostile = msgspec.structs.replace(event, resource_version="\x1b]0;owned\x07", object=b"\x1b[2J")
    async with connected(nats_url, name="test") as bus:
        await ensure_stream(bus)
        head = headers.build(hostile, MESSAGE_KEY)
        await bus.request(subject_of(hostile), codec.encode(hostile), headers=head)
        await bus.request("fleetbus.events.a.core.pods.ns.\x1bx.added", b"no event")
    command = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("fleetbus")),
        *("events", "--since", "1m", "-o", output, "--nats-url", nats_url),
        stdout=PIPE,
    )
    shown = (await command.communicate())[0].decode()
    assert command.returncode == 0
    assert len(shown.splitlines()) == (2 if output == "json" else 3)
    assert all(line.replace("\x9b", "").isprintable() for line in shown.splitlines()), shown
    assert output == "json" or "\x9b" not in shown


def test_a_time_that_is_too_long_ago_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than 100 years"):
        parse_since("99999999999d")
