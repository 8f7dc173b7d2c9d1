"""Something else than NATS listens at the address: a finding, no traceback (rule B13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from fleetbus.bus.connection import connected
from fleetbus.errors import BusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus_cli.doctor.server_certificates import check_nats_certificates
from fleetbus_cli.nats import connect_nats
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.ports import HeldPort
from support.eventually import eventually

PATIENCE = timedelta(seconds=2)
GREETINGS = (b"INFO [1]\r\n", b"INFO null\r\n", b'INFO {"tls_required": 7}\r\n', b"\xff" * 200_000)


@asynccontextmanager
async def greeting(content: bytes, port: int = 0) -> AsyncGenerator[int]:
    """A server that sends this, and then nothing."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(content)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", port)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("content", GREETINGS)
async def test_b13_what_is_no_nats_is_a_finding(content: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleetbus_cli.nats.PATIENCE", PATIENCE)
    monkeypatch.setattr("fleetbus_cli.doctor.server_certificates.WITHIN", PATIENCE)
    async with greeting(content) as port:
        access = NatsAccess(url=f"nats://127.0.0.1:{port}")
        with pytest.raises(BusError, match="NATS"):
            async with connect_nats(access, name="doctor"):
                pass
        assert [finding async for finding in check_nats_certificates(access)] == []


@pytest.mark.slow
async def test_b13_a_client_comes_back_from_an_address_that_was_somebody_elses(tmp_path: Path):
    port = HeldPort("127.0.0.1", 0)
    access = NatsAccess(url=f"nats://127.0.0.1:{port.number}")
    async with (
        nats_server(store_dir=tmp_path, port=port.number) as server,
        connected(access, name="a") as bus,
    ):
        for content in GREETINGS[0], GREETINGS[-1]:
            await server.stop()
            async with greeting(content, port.number):
                await eventually(lambda: "no NATS server" in bus.trouble())
            await server.restart()
            await eventually(lambda: bus.is_connected)
    port.release()
