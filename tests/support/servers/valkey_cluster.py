"""A Cluster of three Valkeys on loopback, with a replica of each if a test wants failovers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.crc import key_slot

from fleetbus_devfleet.processes.servers import ValkeyServer
from support.eventually import eventually
from support.servers.store_nodes import StoreNodes, StoreTls, port_of

MASTERS = 3
SLOTS = 16384
NODE_TIMEOUT = timedelta(seconds=2)
_LOOPBACK = "127.0.0.1"


@dataclass
class ValkeyCluster:
    """The masters, and the replica of each."""

    nodes: StoreNodes
    masters: list[ValkeyServer] = field(default_factory=list[ValkeyServer])
    replicas: list[ValkeyServer] = field(default_factory=list[ValkeyServer])

    @property
    def url(self) -> str:
        places = (f"{_LOOPBACK}:{self.nodes.port(server)}" for server in self.masters)
        return f"{self.nodes.scheme}+cluster://{','.join(places)}"

    @property
    def servers(self) -> list[ValkeyServer]:
        return [*self.masters, *self.replicas]

    async def owner_of(self, key: str) -> ValkeyServer:
        """The master that holds a key now."""
        slot = key_slot(key.encode())
        for server in self.servers:
            try:
                for first, last, (_, port, *_), *_ in await ask(server, "CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return next(node for node in self.servers if port_of(node) == port)
            except OSError:
                continue
        raise AssertionError("no node answers")

    async def is_up(self) -> bool:
        """Whether every node that runs knows a master of every slot."""
        states = [await ask(server, "CLUSTER INFO") for server in self.servers if server.is_ready()]
        return all(b"cluster_state:ok" in state for state in states)


async def ask(server: ValkeyServer, *words: str) -> Any:
    """The raw answer of one server."""
    async with Redis.from_url(server.url) as client:
        client.response_callbacks.clear()
        try:
            return await cast("Any", client.execute_command(*words))
        except Exception as e:
            raise OSError(str(e)) from e


@asynccontextmanager
async def valkey_cluster(
    folder: Path,
    *,
    has_replicas: bool = False,
    appendonly: bool = False,
    tls: StoreTls | None = None,
) -> AsyncGenerator[ValkeyCluster]:
    """Run the Cluster until the block ends."""
    async with AsyncExitStack() as stack:
        nodes = StoreNodes(stack, tls)
        cluster, bus_ports = ValkeyCluster(nodes), list[int]()
        for number in range(2 * MASTERS if has_replicas else MASTERS):
            bus_ports.append(nodes.hold())
            options = ["--cluster-enabled", "yes", "--cluster-port", str(bus_ports[-1])]
            options += ["--cluster-node-timeout", str(NODE_TIMEOUT // timedelta(milliseconds=1))]
            options += ["--cluster-require-full-coverage", "no"]
            options += ["--tls-cluster", "yes"] if tls else []
            server = await nodes.start(
                folder / f"node-{number}", options=options, appendonly=appendonly
            )
            (cluster.masters if number < MASTERS else cluster.replicas).append(server)
        await _join(cluster, bus_ports)
        yield cluster


async def _join(cluster: ValkeyCluster, bus_ports: Sequence[int]) -> None:
    first = cluster.masters[0]
    for number, server in enumerate(cluster.masters):
        low, high = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS - 1
        await ask(server, "CLUSTER ADDSLOTSRANGE", str(low), str(high))
    for server, bus in zip(cluster.servers, bus_ports, strict=True):
        if server is not first:
            place = (_LOOPBACK, str(cluster.nodes.port(server)), str(bus))
            await ask(first, "CLUSTER MEET", *place)
    count = len(cluster.servers)

    async def knows_all(server: ValkeyServer) -> bool:
        return f"cluster_known_nodes:{count}".encode() in await ask(server, "CLUSTER INFO")

    for server in cluster.servers:
        await eventually(lambda server=server: knows_all(server))
    for master, replica in zip(cluster.masters, cluster.replicas, strict=False):
        name = (await ask(master, "CLUSTER MYID")).decode()
        await ask(replica, "CLUSTER REPLICATE", name)
        await eventually(lambda replica=replica: _is_in_sync(replica))
    await eventually(cluster.is_up)


async def _is_in_sync(replica: ValkeyServer) -> bool:
    return b"master_link_status:up" in await ask(replica, "INFO", "replication")


async def kill_and_fail_over(cluster: ValkeyCluster, key: str) -> ValkeyServer:
    """Kill the master of a key with SIGKILL, and wait until its replica holds the slot."""
    lost = await cluster.owner_of(key)
    lost.kill()

    async def is_replaced() -> bool:
        others = [server for server in cluster.servers if server is not lost]
        slots = await ask(others[0], "CLUSTER SLOTS")
        return await cluster.is_up() and all(at[2][1] != port_of(lost) for at in slots)

    await eventually(is_replaced, timedelta(seconds=30))
    return lost
