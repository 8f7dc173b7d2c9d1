"""A served cluster and an aiohttp client of it, to see faults as clients see them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp

from emulator.support.kube_calls import CONFIGMAPS, config_map
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

JsonObject = dict[str, Any]
BOOKMARKS = timedelta(milliseconds=20)
SILENCE = 0.1  # seconds in which nothing comes, to call it silence


class Line:
    """One event of a watch, or what was left of it."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.document: JsonObject = json.loads(raw)
        self.type: str = self.document["type"]
        self.object: JsonObject = self.document["object"]

    @property
    def name(self) -> str:
        return self.object["metadata"]["name"]

    @property
    def rv(self) -> int:
        return int(self.object["metadata"]["resourceVersion"])


class FaultRig:
    """A cluster, its listeners, a client, and short ways to what tests do most."""

    def __init__(
        self, cluster: Cluster, servers: ApiServers, session: aiohttp.ClientSession
    ) -> None:
        self.cluster = cluster
        self.servers = servers
        self.session = session
        self.faults = cluster.faults

    @property
    def url(self) -> str:
        return self.servers.url(self.cluster.name)

    def add(self, name: str, **data: str) -> JsonObject:
        return self.cluster.create("v1/configmaps", config_map(name, None, **data), "default")

    def remove(self, name: str) -> None:
        self.cluster.delete("v1/configmaps", "default", name)

    def has(self, name: str) -> bool:
        return self.cluster.get("v1/configmaps", "default", name) is not None

    async def get(self, path: str = CONFIGMAPS, **query: str) -> tuple[int, JsonObject]:
        async with self.session.get(self.url + path, params=query) as answer:
            return answer.status, await answer.json(content_type=None)

    async def names(self, **query: str) -> list[str]:
        _, document = await self.get(**query)
        return [item["metadata"]["name"] for item in document["items"]]

    async def post(self, name: str) -> int:
        url = self.url + CONFIGMAPS
        async with self.session.post(url, json=config_map(name)) as answer:
            await answer.read()
            return answer.status

    @asynccontextmanager
    async def watch(self, **query: str) -> AsyncGenerator[aiohttp.StreamReader]:
        params = {"watch": "1", **query}
        async with self.session.get(self.url + CONFIGMAPS, params=params) as answer:
            assert answer.status == 200, await answer.text()
            yield answer.content


async def read_line(stream: aiohttp.StreamReader) -> Line:
    """The next event."""
    async with asyncio.timeout(10):
        return Line(await stream.readline())


async def read_rest(stream: aiohttp.StreamReader) -> list[Line]:
    """All events until the server ends the watch."""
    async with asyncio.timeout(10):
        return [Line(raw) async for raw in stream]


async def is_silent(stream: aiohttp.StreamReader) -> bool:
    """Whether nothing comes for a while, no end either."""
    try:
        async with asyncio.timeout(SILENCE):
            raw = await stream.readline()
    except TimeoutError:
        return True
    raise AssertionError(f"not silent: {raw!r}")


@asynccontextmanager
async def fault_rig() -> AsyncGenerator[FaultRig]:
    """A cluster `alpha` with frequent bookmarks."""
    cluster = Cluster("alpha", seed=1, bookmark_interval=BOOKMARKS)
    async with serve([cluster]) as servers, aiohttp.ClientSession() as session:
        yield FaultRig(cluster, servers, session)
