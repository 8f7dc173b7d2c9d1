"""Rule A8: many clients that list and watch all types at once, as k9s and operators do.

None of them loses a change while the process is killed (A5), and others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
import pytest

from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.eventually import eventually
from support.processes.query_api import memory_of, start_query_api
from support.rigs.query_api import KINDS, QueryApi
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine
    from pathlib import Path

    from redis.asyncio import Redis

CLUSTERS: Final = ("eu1", "us1")
PATHS: Final = {
    key: f"/{'api' if key.startswith('core/') else 'apis/' + key.partition('/')[0]}/v1/"
    f"{key.partition('/')[2]}"
    for key in KINDS
}
INFORMERS: Final = 12
"""Clients that list and watch every type of a cluster."""
BROWSERS: Final = 3
"""Clients that list every type of the fleet as tables, again and again."""
OBJECTS: Final = 500
"""Objects of each type, in each cluster: an answer with all of a type has 2 MB."""
FILLER: Final = "x" * 4_000
TABLES: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
RETRY: Final = 0.05
PATIENCE: Final = timedelta(seconds=40)
SLOWEST: Final = 2.0
"""Seconds for a GET of somebody else, on a busy machine; the clients are in this process."""
GROWTH: Final = 85
"""MiB. All first lists have 120 MB; 32 are in progress at a time, with a page of 1 MB each, and a
page takes three times its size while it is read and rendered."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str
    name: str = ""


class _Data(msgspec.Struct):
    n: int = 0


class _Object(msgspec.Struct):
    metadata: _Metadata
    data: _Data = msgspec.field(default_factory=_Data)


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[_Object]


class _Event(msgspec.Struct):
    type: str
    object: Any


class Fleet:
    """The content of the snapshot, and the process that serves it, always at one address."""

    def __init__(self, redis: Redis, store: str, folder: Path, port: int) -> None:
        self.snapshot = Snapshot(redis)
        self.url = f"http://{LOOPBACK}:{port}"
        self.expected = {(cluster, key): dict[str, int]() for cluster in CLUSTERS for key in KINDS}
        self._store, self._folder, self._port = store, folder, port
        self._version = 1000
        self._dice = random.Random(7)

    async def fill(self) -> None:
        await self.snapshot.set_up()
        async with http_client(self.url) as client:
            for cluster in CLUSTERS:
                await QueryApi(self.url, client, self.snapshot).add_cluster(cluster)
        for place in self.expected:
            await self.write(place, [f"o{number}" for number in range(OBJECTS)])

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[int]:
        """The query API as a process, which is killed at the end; yields its id."""
        settings = {
            "FLEETBUS_REDIS_URL": self._store,
            "FLEETBUS_QUERY_API_AUTHENTICATION": "none",
            "FLEETBUS_QUERY_API_USER_CONCURRENCY": "1000",
        }
        child, _ = await start_query_api(self._folder, settings, port=self._port)
        try:
            yield child.pid
        finally:
            child.kill()

    async def change(self, count: int) -> None:
        """Change, create and delete objects of all types."""
        for _ in range(count):
            place = self._dice.choice(list(self.expected))
            name = f"o{self._dice.randrange(OBJECTS + 20)}"
            if name in self.expected[place] and self._dice.random() < 0.3:
                del self.expected[place][name]
                self._version += 1
                gone = self._source(place).deleted(name, self._version, body=None)
                await self.snapshot.apply(gone)
            else:
                await self.write(place, [name])

    async def write(self, place: tuple[str, str], names: list[str]) -> None:
        """Create or change objects."""
        events: list[Any] = []
        for name in names:
            self._version += 1
            self.expected[place][name] = self._version
            metadata = {"name": name, "namespace": "prod", "resourceVersion": str(self._version)}
            tree = {"metadata": metadata, "data": {"n": self._version, "filler": FILLER}}
            body = msgspec.json.encode(tree)
            events.append(self._source(place).added(name, self._version, body=body))
        await self.snapshot.apply(*events)

    def _source(self, place: tuple[str, str]) -> Source:
        group, _, plural = place[1].partition("/")
        return Source(cluster=place[0], group=group, resource=plural)


class Informer:
    """A client of a type in a cluster: it lists once, and watches from then on."""

    def __init__(self, session: aiohttp.ClientSession, cluster: str, key: str) -> None:
        self._session = session
        self._path = f"/kube/{cluster}{PATHS[key]}"
        self.place = (cluster, key)
        self.held: dict[str, int] = {}
        self.version = ""
        self.lists = 0

    async def run(self) -> None:
        while True:
            with suppress(aiohttp.ClientError):
                if not self.version:
                    await self._list()
                await self._watch()
            await asyncio.sleep(RETRY)  # as informers pause

    async def _list(self) -> None:
        query = {"resourceVersion": "0"}  # as an informer's first list: all in one answer
        async with self._session.get(self._path, params=query) as answer:
            listed = msgspec.json.decode(await answer.read(), type=_List)
        self.held = {item.metadata.name: item.data.n for item in listed.items}
        self.version = listed.metadata.resource_version
        self.lists += 1

    async def _watch(self) -> None:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self.version}
        async with self._session.get(self._path, params=query) as answer:
            async for line in answer.content:
                event = msgspec.json.decode(line, type=_Event)
                if event.type == "ERROR":
                    self.version = ""
                    return
                self._take(event.type, msgspec.convert(event.object, _Object))

    def _take(self, kind: str, obj: _Object) -> None:
        self.version = obj.metadata.resource_version
        if kind == "DELETED":
            self.held.pop(obj.metadata.name, None)
        elif kind != "BOOKMARK":
            self.held[obj.metadata.name] = obj.data.n


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, None]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """Run loops until the block ends; one that has failed by then fails the test."""
    tasks = [asyncio.create_task(coroutine) for coroutine in loops]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end


async def browse(session: aiohttp.ClientSession, rounds: list[int]) -> None:
    """List all types as tables; count each round."""
    while True:
        for path in PATHS.values():
            headers = {"Accept": TABLES}
            async with session.get(f"/kube/-{path}", headers=headers) as answer:
                assert len((await answer.json())["rows"]) > OBJECTS
        rounds.append(1)


async def get_one(session: aiohttp.ClientSession, seconds: list[float]) -> None:
    """Get an object again and again; note how long it takes."""
    while True:
        began = time.monotonic()
        async with session.get("/fleet/v1/objects/eu1/configmaps/prod/neighbour") as answer:
            await answer.read()
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(0.004)  # the pace of the reads


@asynccontextmanager
async def client_of(fleet: Fleet) -> AsyncGenerator[aiohttp.ClientSession]:
    """As many connections as somebody wants; refusals are errors."""
    limits = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE.total_seconds())
    async with aiohttp.ClientSession(
        fleet.url, connector=limits, timeout=timeout, raise_for_status=True
    ) as session:
        yield session


@pytest.fixture
async def fleet(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[Fleet]:
    port = HeldPort(LOOPBACK)
    try:
        server = Fleet(redis, valkey_url, tmp_path, port.number)
        await server.fill()
        await server.write(("eu1", "core/configmaps"), ["neighbour"])
        yield server
    finally:
        port.release()


@pytest.mark.full
@pytest.mark.timeout(180)
async def test_a8_many_clients_that_list_and_watch_everything_are_served_and_so_are_others(
    fleet: Fleet,
):
    async with client_of(fleet) as session:
        informers = [
            Informer(session, CLUSTERS[number % len(CLUSTERS)], key)
            for number in range(INFORMERS)
            for key in KINDS
        ]

        def agree() -> bool:
            return all(informer.held == fleet.expected[informer.place] for informer in informers)

        async with running(*(informer.run() for informer in informers)):
            seconds, rounds = list[float](), list[int]()
            async with fleet.serving() as pid:
                idle = memory_of(pid)
                browsers = [browse(session, rounds) for _ in range(BROWSERS)]
                async with running(get_one(session, seconds), *browsers):
                    await fleet.change(50)
                    await eventually(agree, PATIENCE)
                    await eventually(lambda: len(rounds) >= 2 * BROWSERS, PATIENCE)
                grown = memory_of(pid, "VmHWM") - idle
            await fleet.change(50)
            async with fleet.serving():
                await fleet.change(50)
                await eventually(agree, PATIENCE)
    assert grown < GROWTH
    assert max(seconds) < SLOWEST
    assert {informer.lists for informer in informers} == {1}, "a restart makes nobody list again"
