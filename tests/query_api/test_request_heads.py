"""Rule A8 before anybody is authenticated: connections that never become a request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus_query_api.limits import request_heads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from support.rigs.query_api import QueryApi

START = b"GET /fleet/v1/clusters HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def connected(
    api: QueryApi,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = int(api.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("sent", [b"", b"GET", START, START + b"\r\n" + START])
async def test_a8_a_request_that_is_not_sent_to_the_end_of_its_head_is_disconnected(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch, sent: bytes
):
    monkeypatch.setattr(request_heads, "HEAD_TIMEOUT", timedelta(seconds=0.2))
    async with connected(api) as (reader, writer):
        writer.write(sent)
        answer = await rest_of(reader)
    assert answer.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


async def test_a8_a_head_without_end_is_refused(api: QueryApi):
    sent = 0
    async with connected(api) as (reader, writer):
        writer.write(START + b"X-Long: ")
        reading = asyncio.create_task(rest_of(reader))
        while not reading.done() and sent < 100 * request_heads.MAX_HEAD:
            writer.write(b"a" * 65_536)
            sent += 65_536
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
        await reading
    assert sent < 100 * request_heads.MAX_HEAD


async def test_a8_a_long_head_is_answered_and_a_watch_outlasts_the_time_for_heads(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(request_heads, "HEAD_TIMEOUT", timedelta(seconds=0.2))
    await api.add_cluster("eu1", "core/pods")
    clusters = ",".join(f"{number:050}" for number in range(1_000))
    assert (await api.get("/fleet/v1/resources/pods", cluster=clusters)).status_code == 200
    path = "/kube/eu1/api/v1/pods?watch=1&timeoutSeconds=1"
    async with api.client.stream("GET", path) as watch:
        started = asyncio.get_running_loop().time()
        assert await watch.aread() == b""
        assert asyncio.get_running_loop().time() - started > 0.5
