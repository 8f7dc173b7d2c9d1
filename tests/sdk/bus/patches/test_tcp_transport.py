"""The TCP transport of nats-py does the same on every event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from nats.aio.msg import Msg

from fleetbus.bus.connection import connected
from fleetbus.process.access.nats import nats_access
from support.eventually import eventually
from support.servers.identities import Authority, secured_nats

on_every_loop = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@on_every_loop
def test_a_server_that_closes_a_tls_connection_causes_no_warning(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    async def close() -> None:
        authority = Authority(tmp_path / "ca")
        cert, key = authority.issue("server")
        tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'
        async with secured_nats(tmp_path / "nats", tls) as nats:
            access = nats_access({"url": nats.address, "ca_file": authority.ca})
            async with connected(access, name="a") as bus:
                await nats.server.child.stop()
                await eventually(lambda: bus.disconnects == 1)

    with asyncio.Runner(loop_factory=new_loop) as runner, caplog.at_level(logging.WARNING):
        runner.run(close())
    assert "eof_received" not in caplog.text


@on_every_loop
def test_what_is_written_to_a_connection_that_has_just_ended_is_dropped(
    new_loop: Callable[[], asyncio.AbstractEventLoop], nats_url: str
):
    async def write() -> None:
        received: list[bytes] = []

        async def take(message: Msg) -> None:
            received.append(message.data)

        async with connected(nats_url, name="a") as bus:
            await bus.nc.subscribe("a", cb=take)
            transport: Any = bus.nc._transport  # pyright: ignore[reportPrivateUsage]
            transport._io_writer.transport.abort()
            # Yield: uvloop closes its handle in the next turn, and nats-py reads of it later.
            await asyncio.sleep(0)
            assert bus.nc.is_connected
            bus.nc.publish_directly("a", b"direct")
            assert not await bus.ping(timedelta(seconds=0.2))
            await eventually(lambda: bus.disconnects == 1)
            await eventually(lambda: bus.nc.is_connected)
            await bus.publish("a", b"afterwards")
            await eventually(lambda: received == [b"afterwards"])

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write())
