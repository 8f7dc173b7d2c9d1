"""A master, its replica and one or three Sentinels on loopback."""

from __future__ import annotations

import re
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
    sentinels: list[ValkeyServer]
    nodes: StoreNodes

    @property
    def url(self) -> str:
        places = (f"127.0.0.1:{self.nodes.port(sentinel)}" for sentinel in self.sentinels)
        return f"{self.nodes.scheme}+sentinel://{','.join(places)}/{NAME}/0"

    @property
    def sentinel(self) -> ValkeyServer:
        """The last one, which outlives every test."""
        return self.sentinels[-1]

    @property
    def servers(self) -> list[ValkeyServer]:
        return [self.first, self.replica, *self.sentinels]

    async def master(self) -> ValkeyServer:
        """The master that the Sentinel names."""
        _, port = await ask(self.sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)
        return self.first if int(port) == self.nodes.port(self.first) else self.replica

    async def is_known(self) -> bool:
        """Whether each Sentinel knows the replica and the other Sentinels."""
        others = len(self.sentinels) - 1
        return all(
            [
                len(await ask(sentinel, "SENTINEL REPLICAS", NAME)) == 1
                and len(await ask(sentinel, "SENTINEL SENTINELS", NAME)) == others
                for sentinel in self.sentinels
            ]
        )

    async def stop_replicating(self) -> None:
        """From now on the replica lacks every write, until it is the master."""
        await ask(self.replica, "CONFIG SET", "masterauth", "wrong", "masteruser", "nobody")
        await ask(self.first, "CLIENT KILL", "TYPE", "replica")

        async def is_apart() -> bool:
            return b"master_link_status:down" in await ask(self.replica, "INFO", "replication")

        await eventually(is_apart)

    async def lag(self) -> int:
        """The bytes of the first master's writes that the replica lacks."""
        texts = [await ask(server, "INFO", "replication") for server in (self.first, self.replica)]
        written, received = (int(re.findall(rb"master_repl_offset:(\d+)", t)[0]) for t in texts)
        return written - received

    async def kill_and_fail_over(self) -> None:
        """Kill the first master with SIGKILL, and wait until the replica has taken over."""
        self.first.kill()
        await self.has_failed_over()

    async def first_follows(self) -> None:
        """Wait until the first master is a replica of the other server."""

        async def is_replica() -> bool:
            try:
                return b"role:slave" in await ask(self.first, "INFO", "replication")
            except OSError:  # the Sentinel ends the connections of whoever thinks it is the master
                return False

        await eventually(is_replica, timedelta(seconds=30))

    async def has_failed_over(self) -> None:
        """Wait until the replica has taken over."""

        async def is_replaced() -> bool:
            if await self.master() is not self.replica:
                return False
            return b"role:master" in await ask(self.replica, "INFO", "replication")

        await eventually(is_replaced, timedelta(seconds=30))


async def _is_in_sync(replica: ValkeyServer) -> bool:
    return b"master_link_status:up" in await ask(replica, "INFO", "replication")


@asynccontextmanager
async def _sentinel(
    folder: Path, nodes: StoreNodes, master: ValkeyServer, quorum: int
) -> AsyncGenerator[ValkeyServer]:
    folder.mkdir(parents=True)
    config = folder / "sentinel.conf"
    milliseconds = DOWN_AFTER // timedelta(milliseconds=1)
    config.write_text(
        f"sentinel monitor {NAME} 127.0.0.1 {nodes.port(master)} {quorum}\n"
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
    folder: Path, *, tls: StoreTls | None = None, sentinels: int = 1
) -> AsyncGenerator[ValkeyWithSentinel]:
    """Run all of them until the block ends."""
    async with AsyncExitStack() as stack:
        nodes = StoreNodes(stack, tls)
        first = await nodes.start(folder / "first")
        options = ["--replicaof", "127.0.0.1", str(nodes.port(first)), "--repl-diskless-sync-delay"]
        replica = await nodes.start(folder / "replica", options=[*options, "0"])
        await eventually(lambda: _is_in_sync(replica))
        # Now: a Sentinel asks a master for its replicas at once, and then every ten seconds.
        quorum = sentinels // 2 + 1
        contexts = [
            _sentinel(folder / f"sentinel-{n}", nodes, first, quorum) for n in range(sentinels)
        ]
        started = [await stack.enter_async_context(context) for context in contexts]
        valkey = ValkeyWithSentinel(first, replica, started, nodes)
        await eventually(valkey.is_known, timedelta(seconds=20))
        yield valkey
