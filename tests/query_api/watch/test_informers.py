"""client-go's informers before an API that is restarted and a store that is lost (rules A5, A6).

At the end each cache equals the snapshot, whatever happened to the API and its store.
"""

from __future__ import annotations

import json
import random
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.eventually import eventually
from support.processes.go_informer import find_go_program, informer_cache
from support.rigs.query_api import QueryApi, served
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

CONFIGMAPS = "core/configmaps"
WEB = "app=web"
BACKOFF = timedelta(seconds=60)
"""client-go waits for up to 30 seconds after an error."""

pytestmark = [
    pytest.mark.full,  # client-go is compiled, for minutes where it was never
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def program() -> Path:
    """The program."""
    binary = find_go_program("cache")
    if binary is None:
        pytest.skip("there is no Go here, or no client-go")
    return binary


class Fleet:
    """A snapshot that is written, and an API over it that is restarted at one address."""

    def __init__(self, redis: Redis, url: str, folder: Path, port: int) -> None:
        self.snapshot = Snapshot(redis)
        self.url = f"http://{LOOPBACK}:{port}"
        self._store, self._folder, self._port = url, folder, port
        self._api = AsyncExitStack()
        self._version = 1000
        self._dice = random.Random(7)
        self.expected: dict[str, tuple[str, str]] = {}

    async def fill(self) -> None:
        """Put into an empty store what there is."""
        await self.snapshot.set_up()
        async with http_client(self.url) as client:
            await QueryApi(self.url, client, self.snapshot).add_cluster("eu1", CONFIGMAPS)
        for name, (number, app) in self.expected.items():
            await self._write(name, number, app)

    async def start(self) -> None:
        """Start the API."""
        (self._folder / "query-api.port").unlink(missing_ok=True)
        api = served(self._store, self._folder, port=self._port)
        await self._api.enter_async_context(api)

    async def stop(self) -> None:
        """Stop the API."""
        await self._api.aclose()

    async def change(self, count: int) -> None:
        """Make random changes."""
        for _ in range(count):
            name = f"c{self._dice.randrange(40)}"
            self._version += 1
            if name in self.expected and self._dice.random() < 0.3:
                del self.expected[name]
                source = Source(resource="configmaps")
                await self.snapshot.apply(source.deleted(name, self._version, body=None))
            else:
                app = self._dice.choice(["web", "db"])
                self.expected[name] = (str(self._version), app)
                await self._write(name, str(self._version), app)

    async def _write(self, name: str, number: str, app: str) -> None:
        self._version += 1
        tree = {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": "prod",
                "uid": f"uid-{name}",
                "resourceVersion": str(self._version),
                "labels": {"app": app},
            },
            "data": {"n": number},
        }
        source = Source(resource="configmaps")
        body = json.dumps(tree, separators=(",", ":")).encode()
        await self.snapshot.apply(source.added(name, self._version, body=body))

    def selected(self, selector: str) -> dict[str, str]:
        """The expected content of a cache."""
        entries = self.expected.items()
        return {f"prod/{name}": n for name, (n, app) in entries if not selector or app == "web"}


@asynccontextmanager
async def fleet(folder: Path) -> AsyncGenerator[Fleet]:
    port = HeldPort(LOOPBACK)
    try:
        async with (
            valkey_server(dir=folder / "valkey") as server,
            Redis.from_url(server.url) as redis,
        ):
            found = Fleet(redis, server.url, folder, port.number)
            await found.fill()
            await found.start()
            try:
                yield found
            finally:
                await found.stop()
    finally:
        port.release()


@pytest.mark.parametrize("lists", [True, False])
async def test_a6_informers_equal_the_snapshot_after_restarts_and_a_lost_store(
    program: Path, tmp_path: Path, lists: bool
):
    async with fleet(tmp_path) as server, AsyncExitStack() as exits:
        await server.change(60)
        address = f"{server.url}/kube/eu1"
        caches = {
            selector: await exits.enter_async_context(
                informer_cache(program, address, selector, lists=lists)
            )
            for selector in ("", WEB)
        }

        async def agree() -> bool:
            return all(
                [
                    await cache.read() == server.selected(selector)
                    for selector, cache in caches.items()
                ]
            )

        await eventually(agree, BACKOFF)
        for _ in range(3):
            await server.change(50)
            await server.stop()
            await server.change(50)
            await server.start()
            await server.change(50)
            await eventually(agree, BACKOFF)
        await server.snapshot.redis.flushall()
        await server.change(0)
        await server.fill()
        await server.change(50)
        await eventually(agree, BACKOFF)
