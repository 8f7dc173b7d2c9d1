"""A store that refuses, as its operators or other programs make it: each state, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.eventually import eventually

_ENDLESS = "while true do end"
_OTHERS = 100
_FOR_300_MS = "local start = os.clock(); while os.clock() < start + 0.3 do end"


@dataclass(frozen=True)
class RefusingStore:
    """One store to be broken.

    Attributes:
        url: for clients.
        admin: a client whose one connection stays open.
        other: another program.
        folder: where the store saves its data.
    """

    url: str
    admin: Redis
    other: Redis
    folder: Path

    async def do(self, *words: str) -> Any:
        return await cast("Any", self.admin).execute_command(*words)

    async def cut_off(self) -> None:
        """End all connections but that of the admin."""
        for kind in ("normal", "pubsub"):
            await self.do("CLIENT", "KILL", "TYPE", kind)

    @asynccontextmanager
    async def replica(self) -> AsyncGenerator[None]:
        await self.do("REPLICAOF", LOOPBACK, "1")  # nothing listens there
        yield
        await self.do("REPLICAOF", "NO", "ONE")

    @asynccontextmanager
    async def without_disk(self) -> AsyncGenerator[None]:
        place = self.folder / "dump.rdb"
        place.mkdir()  # so that no file can take its name
        await self.do("CONFIG", "SET", "save", "3600 1")
        await self.do("BGSAVE")
        await eventually(lambda: self._is_saved(status="err"))
        yield
        place.rmdir()
        await self.do("BGSAVE")
        await eventually(lambda: self._is_saved(status="ok"))

    async def _is_saved(self, status: str) -> bool:
        return (await self.admin.info("persistence"))["rdb_last_bgsave_status"] == status

    @asynccontextmanager
    async def blocked(self) -> AsyncGenerator[None]:
        """A script of another program does not end."""
        await self.do("CONFIG", "SET", "busy-reply-threshold", "50")
        async with _beside(lambda: self.other.eval(_ENDLESS, 0)):
            await eventually(self._is_blocked)
            yield
            await self.do("SCRIPT", "KILL")
            await eventually(self._is_free)  # it ends a moment after the answer
        await self.do("CONFIG", "SET", "busy-reply-threshold", "5000")

    async def _is_free(self) -> bool:
        return not await self._is_blocked()

    async def _is_blocked(self) -> bool:
        try:
            await self.do("PING")
        except RedisError as e:
            return "BUSY" in str(e)
        return False

    @asynccontextmanager
    async def slow(self) -> AsyncGenerator[None]:
        """Each turn of the server waits for 300 ms."""

        async def block_again_and_again() -> None:
            while True:
                await self.other.eval(_FOR_300_MS, 0)

        async with _beside(block_again_and_again):
            yield

    @asynccontextmanager
    async def loading(self) -> AsyncGenerator[None]:
        for number in range(_OTHERS):  # without them it is done at once
            await self.do("SET", f"other:{number}", secrets.token_hex(200))
        await self.do("CONFIG", "SET", "key-load-delay", "50000")  # microseconds for each key
        async with _beside(lambda: cast("Any", self.other).execute_command("DEBUG", "RELOAD")):
            await eventually(self._is_loading)
            yield
            await self.do("CONFIG", "SET", "key-load-delay", "0")

    async def _is_loading(self) -> bool:
        return bool((await self.admin.info("persistence"))["loading"])

    @asynccontextmanager
    async def without_rights(self) -> AsyncGenerator[None]:
        await self.do("ACL", "SETUSER", "default", "-eval", "-evalsha")
        yield
        await self.do("ACL", "SETUSER", "default", "+@all")

    @asynccontextmanager
    async def with_another_password(self) -> AsyncGenerator[None]:
        await self.do("ACL", "SETUSER", "default", "resetpass", ">other")
        await self.cut_off()
        yield
        await self.do("ACL", "SETUSER", "default", "nopass")

    @asynccontextmanager
    async def without_connections(self) -> AsyncGenerator[None]:
        await self.do("CONFIG", "SET", "maxclients", "1")
        await self.cut_off()
        yield
        await self.do("CONFIG", "SET", "maxclients", "1000")


State = Callable[[RefusingStore], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _beside(body: Callable[[], Awaitable[Any]]) -> AsyncGenerator[None]:
    """Another client's call while the block lasts; what it answers does not matter."""

    async def call() -> None:
        with contextlib.suppress(RedisError):
            await body()

    task = asyncio.create_task(call())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def refusing_store(folder: Path) -> AsyncGenerator[RefusingStore]:
    """A running store that refuses nothing yet."""
    folder.mkdir()
    port = HeldPort(LOOPBACK)
    options = ["--bind", LOOPBACK, "--dir", str(folder), "--save", ""]
    options += ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"]
    command = [find_valkey_server(), "--port", str(port.number), *options]
    child = Child("store", command, log=folder / "log")
    try:
        await eventually(lambda: _answers(port.number))
        async with _client(port.number) as admin, _client(port.number) as other:
            yield RefusingStore(f"redis://{LOOPBACK}:{port.number}", admin, other, folder)
    finally:
        await child.stop()
        port.release()


def _client(port: int) -> Redis:
    never = Retry(NoBackoff(), 0)  # else a script that was killed runs again
    return Redis(
        host=LOOPBACK, port=port, single_connection_client=True, socket_timeout=None, retry=never
    )


async def _answers(port: int) -> bool:
    with contextlib.suppress(RedisError):
        async with _client(port) as client:
            return bool(await client.ping())
    return False
