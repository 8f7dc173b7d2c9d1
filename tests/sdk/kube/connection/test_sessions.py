"""The connections of one client: both sessions close, and unneeded connections expire."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fleetbus.kube.connection.sessions import Sessions
from fleetbus_emulator.apiserver import Cluster, serve


async def _unchecked(_method: str) -> bool:
    return False


async def test_a_cancelled_close_closes_both_sessions():
    sessions = Sessions(buffer=2**16, guard=None, verify=_unchecked)
    shared, alone = sessions.get(), sessions.get(alone=True)
    async with serve([Cluster("eu1")]) as servers:
        url = servers.kubeconfig()["clusters"][0]["cluster"]["server"] + "/version"
        # With a connection open, closing takes a moment, in which it can be cancelled.
        async with shared.get(url, ssl=False) as response:
            await response.read()
        closing = asyncio.create_task(sessions.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert shared.closed
    assert alone.closed


async def test_connections_of_a_peak_expire_although_requests_come_all_the_time():
    """aiohttp would use all of them in turn, so that none is ever unused for long."""
    together, open_connections = asyncio.Barrier(5), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        with suppress(asyncio.IncompleteReadError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                if b"/peak" in request:
                    await together.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        open_connections -= 1
        writer.close()

    async def get(path: str) -> None:
        async with sessions.get().get(f"http://127.0.0.1:{port}/{path}") as response:
            await response.read()

    sessions = Sessions(buffer=2**16, guard=None, verify=_unchecked, kept=0.5)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.gather(*(get("peak") for _ in range(5)))
            assert open_connections == 5
            async with asyncio.timeout(10):
                while open_connections > 1:
                    await get("next")
                    await asyncio.sleep(0.05)  # the pace of the requests
        finally:
            await sessions.close()
