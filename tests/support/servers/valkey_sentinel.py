"""A master, its replica and a Sentinel on loopback."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import (
    ValkeyServer,
    find_valkey_server,
    valkey_server,
)
from fleetbus_emulator.ports import HeldPort
from support.eventually import eventually
from support.servers.valkey_cluster import ask, port_of

NAME = "store"
DOWN_AFTER = timedelta(seconds=1)
_START = timedelta(seconds=20)


@dataclass
class ValkeyWithSentinel:
    """The first master, its replica, and who tells which of them is the master."""

    first: ValkeyServer
    replica: ValkeyServer
    sentinel: ValkeyServer

    @property
    def url(self) -> str:
        place = self.sentinel.url.removeprefix("redis://")
        return f"redis+sentinel://{place}/{NAME}/0"

    async def master(self) -> ValkeyServer:
        """The master that the Sentinel names."""
        _, port = await ask(self.sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)
        return self.first if int(port) == port_of(self.first) else self.replica

    async def knows_replica(self) -> bool:
        return len(await ask(self.sentinel, "SENTINEL REPLICAS", NAME)) == 1

    async def kill_and_fail_over(self) -> None:
        """Kill the first master with SIGKILL, and wait until the replica has taken over."""
        self.first.kill()

        async def is_replaced() -> bool:
            if await self.master() is not self.replica:
                return False
            return b"role:master" in await ask(self.replica, "INFO", "replication")

        await eventually(is_replaced, timedelta(seconds=30))


async def _is_in_sync(replica: ValkeyServer) -> bool:
    return b"master_link_status:up" in await ask(replica, "INFO", "replication")


@asynccontextmanager
async def _sentinel(folder: Path, master: ValkeyServer) -> AsyncGenerator[ValkeyServer]:
    folder.mkdir(parents=True)
    config = folder / "sentinel.conf"
    milliseconds = DOWN_AFTER // timedelta(milliseconds=1)
    config.write_text(
        f"sentinel monitor {NAME} 127.0.0.1 {port_of(master)} 1\n"
        f"sentinel down-after-milliseconds {NAME} {milliseconds}\n"
        f"sentinel failover-timeout {NAME} 5000\n"
    )
    held = HeldPort("127.0.0.1", 0)
    words = ["--sentinel", "--port", str(held.number), "--bind", "127.0.0.1", "--dir", str(folder)]
    child = Child("sentinel", [find_valkey_server(), config, *words], log=folder / "sentinel.log")
    server = ValkeyServer(url=f"redis://127.0.0.1:{held.number}", child=child)
    try:
        await child.wait_until(server.is_ready, within=_START)
        yield server
    finally:
        await server.stop()
        held.release()


@asynccontextmanager
async def valkey_with_sentinel(folder: Path) -> AsyncGenerator[ValkeyWithSentinel]:
    """Run all three until the block ends."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(valkey_server(dir=folder / "first"))
        options = ["--replicaof", "127.0.0.1", str(port_of(first)), "--repl-diskless-sync-delay"]
        replica = await stack.enter_async_context(
            valkey_server(dir=folder / "replica", options=[*options, "0"])
        )
        await eventually(lambda: _is_in_sync(replica))
        # Now: a Sentinel asks a master for its replicas at once, and then every ten seconds.
        sentinel = await stack.enter_async_context(_sentinel(folder / "sentinel", first))
        found = ValkeyWithSentinel(first, replica, sentinel)
        await eventually(found.knows_replica, timedelta(seconds=20))
        yield found
