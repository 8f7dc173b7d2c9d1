"""Sentinels or a Cluster that take clients with TLS, a certificate and a user, and a busy queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import redis.exceptions as errors

from fleetbus.process.access.store import StoreAccess
from fleetbus.process.health import Health
from fleetbus.reconcile import Request
from fleetbus.store.blocking import make_blocking
from fleetbus.store.connection import connect_patiently
from fleetbus.workqueue import Add, QueuePolicy, RedisQueue, WorkqueueError
from fleetbus_devfleet.processes.servers import ValkeyServer
from support.eventually import eventually
from support.servers.identities import Authority
from support.servers.store_nodes import StoreNodes, StoreTls, tls_access, tls_store, write_client
from support.servers.valkey_cluster import ask, kill_and_fail_over, valkey_cluster
from support.servers.valkey_sentinel import valkey_with_sentinel

USER = "fleetbus"
CANARY = "CANARY-77aa"
ENOUGH = 10
_LEASE = timedelta(seconds=2)
_PAUSE = timedelta(milliseconds=2)
_FAILURES = (errors.RedisError, errors.RedisClusterException, WorkqueueError)
"""Raised by a client while it is locked out; the second is no RedisError."""


class QueueLoad:
    """Adds items without a pause, and handles them; each confirmed item must be handled.

    Args:
        client: of the queue.
        blocking: of the thread that extends leases.
        health: of the client.
    """

    def __init__(self, client: Any, blocking: Any, health: Health) -> None:
        self.client = client
        self.health = health
        self.is_adding = True
        self._blocking = blocking
        self.queue = RedisQueue(client, "pods", policy=QueuePolicy(lease=_LEASE))
        self._added: set[str] = set()
        self._handled: set[str] = set()

    async def add(self) -> None:
        number = 0
        while True:
            number += 1
            with suppress(*_FAILURES):
                await eventually(lambda: self.is_adding, timedelta(minutes=1))
                await self.queue.add([Add(Request("pods", "eu1", "ns", f"item-{number}"))])
                self._added.add(f"item-{number}")
            await asyncio.sleep(_PAUSE.total_seconds())  # the pace of the load

    async def handle(self) -> None:
        while True:
            with suppress(*_FAILURES):
                await self.queue.reap()
                leases = await self.queue.take(10, wait=timedelta(seconds=0.1))
                while leases:
                    with suppress(*_FAILURES):
                        await self.queue.done(leases)
                        break
                    await asyncio.sleep(_PAUSE.total_seconds())  # before the next attempt
                self._handled |= {lease.request.name for lease in leases}
                continue
            await asyncio.sleep(_PAUSE.total_seconds())  # before the next attempt

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Add nothing: a master that is lost takes along what no replica has yet (rule P16)."""
        self.is_adding = False
        await eventually(lambda: self._added <= self._handled, timedelta(seconds=30))
        yield
        self.is_adding = True

    async def goes_on(self) -> None:
        """Wait until everything that was added is handled, new items are, and a thread is served.

        A lease whose confirmation was lost is handed out again only after it has expired.
        """
        added, handled = set(self._added), len(self._handled)
        await eventually(lambda: added <= self._handled, timedelta(seconds=90))
        await eventually(lambda: len(self._handled) > handled + ENOUGH, timedelta(seconds=30))
        await eventually(lambda: self.health.is_ready)
        await eventually(lambda: asyncio.to_thread(self._thread_is_served))

    def _thread_is_served(self) -> bool:
        with suppress(*_FAILURES):
            return self._blocking.execute_command("HLEN", "fleetbus:{q:pods}:dirty") >= 0
        return False


@dataclass
class SecuredStore:
    """Its servers, what a client logs in with, and the folder of both."""

    folder: Path
    url: str
    nodes: StoreNodes
    servers: Sequence[ValkeyServer]
    fail_over: Callable[[], Any]
    sentinel: ValkeyServer | None = None

    @property
    def password(self) -> Path:
        return self.folder / "password"

    @property
    def certificates(self) -> Path:
        return self.folder / "client"

    @property
    def access(self) -> StoreAccess:
        user: dict[str, Any] = {"username": USER, "password_file": self.password}
        if self.sentinel is not None:
            user |= {"sentinel_username": USER, "sentinel_password_file": self.password}
        return tls_access(self.url, self.certificates, **user)

    async def rotate_password(self, word: str) -> None:
        """Another password of the servers, then everybody is disconnected, then another file."""
        await self.set_password(word)
        for server in self._running():
            await ask(server, "CLIENT KILL", "USER", USER)
        await asyncio.sleep(0.3)  # locked out meanwhile
        self.password.write_text(f"{CANARY}-{word}\n")

    async def set_password(self, word: str) -> None:
        rules = ("reset", "on", f">{CANARY}-{word}", "~*", "&*", "+@all")
        for server in self._running():
            await ask(server, "ACL SETUSER", USER, *rules)

    async def rotate_certificates(self, name: str) -> None:
        """Another CA of the servers, then everybody is disconnected, then other files of ours."""
        authority = Authority(self.folder / name)
        words = cast("StoreTls", self.nodes.tls).use(authority)
        for server in self._running():
            if server is self.sentinel:  # it reads certificates when it starts
                await server.restart()
                await self.set_password(self.password.read_text().strip().rpartition("-")[2])
            else:
                await ask(server, "CONFIG SET", *words)
                await ask(server, "CLIENT KILL", "USER", USER)
        await asyncio.sleep(0.3)  # locked out meanwhile
        write_client(self.certificates, authority)

    def _running(self) -> list[ValkeyServer]:
        return [server for server in self.servers if server.is_ready()]

    async def check_that_all_log_in(self) -> None:
        """No connection of a client is without our user; those of servers are none of ours."""
        users: set[str] = set()
        for server in self._running():
            port = self.nodes.port(server)
            lines = (await ask(server, "CLIENT LIST")).decode().splitlines()
            for line in lines:
                of = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
                is_ours = not of["name"].startswith("sentinel-") and not set("SMx") & set(
                    of["flags"]
                )
                if of["laddr"].endswith(f":{port}") and is_ours:
                    users.add(of["user"])
        assert users == {USER}

    @asynccontextmanager
    async def under_load(self) -> AsyncGenerator[QueueLoad]:
        """A queue that is filled and emptied until the block ends."""
        async with AsyncExitStack() as stack:
            health = Health()
            client = await connect_patiently(self.access, health)
            stack.push_async_callback(client.aclose)
            blocking: Any = make_blocking(self.access, socket_timeout=3)
            stack.callback(blocking.close)
            load = QueueLoad(client, blocking, health)
            stack.push_async_callback(load.queue.aclose)
            tasks = [asyncio.create_task(load.add()), asyncio.create_task(load.handle())]
            try:
                yield load
                await load.goes_on()
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), (
                outcomes
            )


Secured = Callable[[Path], AbstractAsyncContextManager[SecuredStore]]


@asynccontextmanager
async def secured_sentinel(folder: Path) -> AsyncGenerator[SecuredStore]:
    """A master, its replica and a Sentinel, each of which has our user."""
    tls = _prepare(folder)
    async with valkey_with_sentinel(folder / "store", tls=tls) as found:
        store = SecuredStore(
            folder,
            found.url,
            found.nodes,
            found.servers,
            found.kill_and_fail_over,
            found.sentinel,
        )
        await store.set_password("one")
        yield store


@asynccontextmanager
async def secured_cluster(
    folder: Path, *, has_replicas: bool = False
) -> AsyncGenerator[SecuredStore]:
    """Three masters, each of which has our user."""
    tls = _prepare(folder)
    async with valkey_cluster(folder / "store", tls=tls, has_replicas=has_replicas) as cluster:

        async def fail_over() -> None:
            await kill_and_fail_over(cluster, "fleetbus:{q:pods}:dirty")

        store = SecuredStore(folder, cluster.url, cluster.nodes, cluster.servers, fail_over)
        await store.set_password("one")
        yield store


def _prepare(folder: Path) -> StoreTls:
    tls_store()  # skips before anything is made
    first, tls = Authority(folder / "first"), StoreTls(folder / "servers")
    tls.use(first)
    write_client(folder / "client", first)
    (folder / "password").write_text(f"{CANARY}-one\n")
    return tls
