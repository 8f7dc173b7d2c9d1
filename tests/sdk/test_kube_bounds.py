"""What an API server answers is bounded after decompression: rule S7."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from fleetbus.errors import KubeError, ServerError
from fleetbus.kube import listing
from fleetbus.kube.answers import ANSWER_LIMIT, MIB
from fleetbus.kube.client import KubeClient
from fleetbus.kube.config import KubeConfig
from fleetbus.kube.listing import Target, in_turns, list_pages
from fleetbus_proto.resources import parse_resource

TARGET = Target(parse_resource("v1/configmaps"))
UID = '{"metadata":{"name":"kube-system","uid":"u","resourceVersion":"1"},"x":"'


def bomb(prefix: str, mib: int, suffix: str = "") -> bytes:
    """So many MiB of spaces behind a prefix, as a thousandth of that in gzip."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [squeeze.compress(prefix.encode())]
    parts += [squeeze.compress(b" " * MIB) for _ in range(mib)]
    return b"".join([*parts, squeeze.compress(suffix.encode()), squeeze.flush()])


class Hostile:
    """An API server whose every answer is the same."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.url = ""

    async def answer(self, _: web.BaseRequest) -> web.Response:
        told = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return web.Response(body=self.body, status=self.status, headers=told)


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
async def client(server: Hostile) -> AsyncGenerator[KubeClient]:
    document: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server.url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    async with KubeClient(KubeConfig(json.dumps(document))) as made:
        yield made


async def test_s7_a_single_answer_is_read_up_to_its_limit(server: Hostile, client: KubeClient):
    server.body = bomb(UID, 17, '"}')
    with pytest.raises(ServerError, match="larger than 16 MiB"):
        await client.kube_system_uid()
    server.body = bomb(UID, ANSWER_LIMIT // MIB - 1, '"}')
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
    parts = [part async for part in in_turns(b"x" * MIB)]
    other.cancel()
    assert b"".join(parts) == b"x" * MIB
    assert turns >= len(parts) - 1 >= 15


@pytest.mark.parametrize("is_custom", [False, True], ids=["built-in", "custom"])
async def test_s7_a_large_page_is_cut_while_it_is_read(
    server: Hostile, client: KubeClient, monkeypatch: pytest.MonkeyPatch, *, is_custom: bool
):
    monkeypatch.setattr(listing, "_WHOLE_LIMIT", 100_000)
    server.body = bomb(listed(40, 20_000, is_custom=is_custom), 0)
    async with aclosing(list_pages(client, TARGET)) as pages:
        found = [page async for page in pages]
    assert sum(len(page.items) for page in found) == 40
    assert {page.resource_version for page in found} == {"7"}
    assert (len(found) > 1) is not is_custom


async def test_s7_a_list_holds_no_object_and_no_wait_over_its_limit(
    server: Hostile, client: KubeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listing, "_WHOLE_LIMIT", 100_000)
    monkeypatch.setattr(listing, "LINE_LIMIT", 2 * MIB)
    monkeypatch.setattr(listing, "_WAITING_LIMIT", 3 * MIB)
    for body, what in (
        (bomb(listed(1, 0)[:-4], 5), "an object of the list is larger than 2 MiB"),
        (bomb(listed(400, 20_000, is_custom=True), 0), "version last, is larger than 3 MiB"),
    ):
        server.body = body
        with pytest.raises(ServerError, match=what):
            async with aclosing(list_pages(client, TARGET)) as pages:
                assert [page async for page in pages]
