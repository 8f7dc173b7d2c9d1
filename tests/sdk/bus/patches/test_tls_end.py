"""The end of a TLS connection to NATS is nothing to warn of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from fleetbus.bus.connection import connected
from fleetbus.process.access.nats import nats_access
from support.eventually import eventually
from support.servers.identities import Authority, secured_nats


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
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
