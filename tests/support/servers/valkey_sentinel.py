"""A master, its replica and a Sentinel on loopback."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import ValkeyServer, find_valkey_server
from support.eventually import eventually
from support.servers.store_nodes import StoreNodes, StoreTls, tls_store
from support.servers.valkey_cluster import ask

NAME = "store"
DOWN_AFTER = timedelta(seconds=1)
_START = timedelta(seconds=20)


@dataclass
class ValkeyWithSentinel:
    """The first master, its replica, and who tells which of them is the master."""

    first: ValkeyServer
    replica: ValkeyServer
    sentinel: ValkeyServer
    nodes: StoreNodes

    @property
    def url(self) -> str:
        return f"{self.nodes.scheme}+sentinel://127.0.0.1:{self.nodes.port(self.sentinel)}/{NAME}/0"

    @property
    def servers(self) -> list[ValkeyServer]:
        return [self.first, self.replica, self.sentinel]

    async def master(self) -> ValkeyServer:
        """The master that the Sentinel names."""
        _, port = await ask(self.sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)
        return self.first if int(port) == self.nodes.port(self.first) else self.replica

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
async def _sentinel(
    folder: Path, nodes: StoreNodes, master: ValkeyServer
) -> AsyncGenerator[ValkeyServer]:
    folder.mkdir(parents=True)
    config = folder / "sentinel.conf"
    milliseconds = DOWN_AFTER // timedelta(milliseconds=1)
    config.write_text(
        f"sentinel monitor {NAME} 127.0.0.1 {nodes.port(master)} 1\n"
        f"sentinel down-after-milliseconds {NAME} {milliseconds}\n"
        f"sentinel failover-timeout {NAME} 5000\n"
    )
    port, binary = nodes.hold(), find_valkey_server() if nodes.tls is None else tls_store()
    words = ["--sentinel", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}"
    if nodes.tls is not None:
        nodes.tls_ports[url] = nodes.hold()
        words += [*nodes.tls.options(nodes.tls_ports[url]), "--tls-replication", "yes"]
    child = Child("sentinel", [binary, config, *words], log=folder / "sentinel.log")
    server = ValkeyServer(url=url, child=child)
    try:
        await child.wait_until(server.is_ready, within=_START)
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def valkey_with_sentinel(
    folder: Path, *, tls: StoreTls | None = None
) -> AsyncGenerator[ValkeyWithSentinel]:
    """Run all three until the block ends."""
    async with AsyncExitStack() as stack:
        nodes = StoreNodes(stack, tls)
        first = await nodes.start(folder / "first")
        options = ["--replicaof", "127.0.0.1", str(nodes.port(first)), "--repl-diskless-sync-delay"]
        replica = await nodes.start(folder / "replica", options=[*options, "0"])
        await eventually(lambda: _is_in_sync(replica))
        # Now: a Sentinel asks a master for its replicas at once, and then every ten seconds.
        context = _sentinel(folder / "sentinel", nodes, first)
        sentinel = await stack.enter_async_context(context)
        valkey = ValkeyWithSentinel(first, replica, sentinel, nodes)
        await eventually(valkey.knows_replica, timedelta(seconds=20))
        yield valkey
