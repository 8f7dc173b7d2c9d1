"""Responses of API servers are bounded after decompression (rule S7)."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from fleetbus.errors import KubeError, ServerError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.list_watch import listing
from fleetbus.kube.list_watch import object_lists as tree_lists
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages, yielding_chunks
from fleetbus.kube.responses import MIB, RESPONSE_LIMIT
from fleetbus_proto.resources import parse_resource
from support.rigs.agents import Connect

TARGET = WatchTarget(parse_resource("v1/configmaps"))
UID = '{"metadata":{"name":"kube-system","uid":"u","resourceVersion":"1"},"x":"'


def bomb(prefix: str, mib: int, suffix: str = "") -> bytes:
    """So many MiB of spaces behind a prefix, as a thousandth of that in gzip."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [squeeze.compress(prefix.encode())]
    parts += [squeeze.compress(b" " * MIB) for _ in range(mib)]
    return b"".join([*parts, squeeze.compress(suffix.encode()), squeeze.flush()])


ENDLESS = b"a list that goes on at another place after each page"


def page(count: int, *, more: str) -> str:
    metadata = {"resourceVersion": "7", "continue": more}
    items = [{"metadata": {"name": "a", "resourceVersion": "1"}}] * count
    return json.dumps(
        {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": items}
    )


class Hostile:
    """An API server whose every answer is the same."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.url = ""
        self.asked = 0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked += request.path != KUBE_SYSTEM  # which an agent reads for itself
        if self.body is ENDLESS:
            size = int(request.query.get("limit", "0"))
            more = page(size, more=str(self.asked))
            return web.Response(text=more, content_type="application/json")
        reported = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return web.Response(body=self.body, status=self.status, headers=reported)


@pytest.fixture
async def server() -> AsyncGenerator[Hostile]:
    hostile = Hostile()
    runner = web.ServerRunner(web.Server(hostile.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hostile.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield hostile
    await runner.cleanup()


@pytest.fixture
async def client(server: Hostile, connect: Connect) -> AsyncGenerator[KubeClient]:
    document: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server.url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    async with connect(document) as kube:
        yield kube


async def test_s7_a_single_answer_is_read_up_to_its_limit(server: Hostile, client: KubeClient):
    server.body = bomb(UID, 17, '"}')
    with pytest.raises(ServerError, match="larger than 16 MiB"):
        await client.kube_system_uid()
    server.body = bomb(UID, RESPONSE_LIMIT // MIB - 1, '"}')
    assert await client.kube_system_uid() == "u"


async def test_s7_an_error_says_what_it_is_however_long_its_text(
    server: Hostile, client: KubeClient
):
    server.body, server.status = bomb(UID, 2), 403
    with pytest.raises(KubeError, match="larger than 1 MiB") as caught:
        await client.get("v1/configmaps", "n", "x")
    assert caught.value.status == 403


async def test_s7_a_page_of_trees_is_bounded(server: Hostile, client: KubeClient):
    server.body = bomb(UID, 65)
    with pytest.raises(ServerError, match="larger than 64 MiB"):
        await client.list("v1/configmaps")


def listed(count: int, size: int, *, is_custom: bool = False) -> str:
    item = json.dumps({"metadata": {"name": "a", "resourceVersion": "1"}, "x": " " * size})
    head = '"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"}'
    items = f'"items":[{",".join([item] * count)}]'
    return f"{{{items},{head}}}" if is_custom else f"{{{head},{items}}}"


async def test_s7_other_tasks_run_while_a_large_answer_is_cut_into_items():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    parts = [chunk async for chunk in yielding_chunks(b"x" * MIB)]
    other.cancel()
    assert b"".join(parts) == b"x" * MIB
    assert turns >= len(parts) - 1 >= 15


@pytest.mark.parametrize("is_custom", [False, True], ids=["built-in", "custom"])
async def test_s7_a_large_page_is_cut_while_it_is_read(
    server: Hostile, client: KubeClient, monkeypatch: pytest.MonkeyPatch, *, is_custom: bool
):
    monkeypatch.setattr(listing, "WHOLE_LIMIT", 100_000)
    server.body = bomb(listed(40, 20_000, is_custom=is_custom), 0)
    async with aclosing(list_pages(client, TARGET)) as pages:
        received = [page async for page in pages]
    assert sum(len(page.items) for page in received) == 40
    assert {page.resource_version for page in received} == {"7"}
    assert (len(received) > 1) is not is_custom


async def test_s7_a_list_holds_no_object_and_no_wait_over_its_limit(
    server: Hostile, client: KubeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listing, "WHOLE_LIMIT", 100_000)
    monkeypatch.setattr(listing, "LINE_LIMIT", 2 * MIB)
    monkeypatch.setattr(listing, "WAITING_LIMIT", 3 * MIB)
    for body, problem in (
        (bomb(listed(1, 0)[:-4], 5), "an object of the list is larger than 2 MiB"),
        (bomb(listed(400, 20_000, is_custom=True), 0), "version comes last, is larger than 3 MiB"),
    ):
        server.body = body
        with pytest.raises(ServerError, match=problem):
            async with aclosing(list_pages(client, TARGET)) as pages:
                assert [page async for page in pages]


# --- lists without an end ---------------------------------------------------------------------


async def drained(client: KubeClient) -> None:
    async with aclosing(list_pages(client, TARGET)) as pages:
        assert [page async for page in pages]


async def listed_whole(client: KubeClient) -> None:
    await client.list("v1/configmaps")


@pytest.mark.parametrize("read", [listed_whole, drained])
async def test_s7_a_list_that_goes_on_where_a_page_begins_is_refused(
    server: Hostile, client: KubeClient, read: Callable[[KubeClient], Awaitable[object]]
):
    server.body = gzip.compress(page(3, more="same").encode())
    with pytest.raises(ServerError, match="continue token with which it was requested"):
        await read(client)
    assert server.asked == 2


@pytest.mark.parametrize(
    ("limit", "value", "reported"),
    [
        ("_OBJECTS", 2_000, "more than 2000 objects"),
        ("_BYTES", 2 * MIB, "the list is larger than 2 MiB"),
        ("_PATIENCE", timedelta(seconds=0.1), "the list took longer than 0.1 s"),
    ],
)
async def test_s7_a_list_of_trees_is_bounded_as_a_whole(
    server: Hostile,
    client: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: object,
    reported: str,
):
    monkeypatch.setattr(tree_lists, limit, value)
    server.body = ENDLESS
    with pytest.raises(KubeError, match=reported):
        await client.list("v1/configmaps")


async def test_s7_whether_there_is_any_object_takes_one_object(server: Hostile, client: KubeClient):
    server.body = ENDLESS
    assert await client.has_any("v1/configmaps")
    assert server.asked == 1
    server.body = gzip.compress(page(0, more="same").encode())
    with pytest.raises(ServerError):
        await client.has_any("v1/configmaps")
