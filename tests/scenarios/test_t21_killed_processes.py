"""T21: kill -9 of NATS, of Redis, of every fleetbus process; Redis wiped; NATS wiped.

Each time the snapshot equals the API servers within 60 s, every change made meanwhile is
reconciled, one key never runs twice at a time and nothing is deleted by it. With real
processes and their own timers, so it is part of `make scenarios` only; losses with scaled timers
are in test_p14_store_losses.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.hostile.careless_copies import COPIER, KEY, MAPS, OBJECTS, Load, data, versions
from support.processes.services import Processes
from support.rigs.scenario import FULL

pytestmark = [
    pytest.mark.skipif(not FULL, reason="a minute and more: make scenarios"),
    pytest.mark.timeout(900),
]
WITHIN = timedelta(seconds=60)


@dataclass
class Machine:
    """Everything as processes, on one machine."""

    clusters: dict[str, Cluster]
    nats: NatsServer
    valkey: ValkeyServer
    services: list[Child]
    load: Load
    log: Path

    async def is_in_step(self) -> bool:
        if data(self.clusters["a"]) != data(self.clusters["b"]):
            return False
        async with Redis.from_url(self.valkey.url) as redis:
            reader = SnapshotReader(redis, SnapshotKeys())
            try:
                found = await reader.freshness(self.clusters, KEY)
                pages = [
                    await reader.list(ListQuery(clusters=[name], resource=KEY))
                    for name in self.clusters
                ]
            except (RedisError, StoreError):
                return False
        held = [{entry.name: entry.resource_version for entry in page.entries} for page in pages]
        is_complete = all(freshness.is_complete for freshness in found.values())
        return is_complete and held == [versions(cluster) for cluster in self.clusters.values()]

    def check(self) -> None:
        asked = [r for r in self.clusters["b"].requests if r.verb.startswith("delete")]
        assert {r.path.rpartition("/")[2] for r in asked} <= self.load.deleted
        runs = sorted(json.loads(line) for line in self.log.read_text().splitlines())
        for (name, _, ended), (other, started, _) in itertools.pairwise(runs):
            assert name != other or ended <= started, f"two runs at a time: {name}"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Machine]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nats = await enter(nats_server(store_dir=tmp_path / "nats"))
        valkey = await enter(valkey_server(dir=tmp_path / "valkey", appendonly=True))
        clusters = {name: Cluster(name) for name in ("a", "b")}
        servers = await enter(serve(list(clusters.values())))
        kubeconfig = tmp_path / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        log = tmp_path / "copier.log"
        log.touch()
        start = Processes(tmp_path, kubeconfig, nats.url, valkey.url, [MAPS])
        services = [
            start.reconciler(f"reconciler-{n}", COPIER, projector=n == 0, COPIER_LOG=str(log))
            for n in range(2)
        ]
        services += [start.watcher(name) for name in clusters]
        for child in services:
            stack.push_async_callback(child.stop)
        made = Machine(clusters, nats, valkey, services, Load(clusters["a"]), log)
        for number in range(OBJECTS):
            made.load.write(f"m{number}")
        await eventually(made.is_in_step, WITHIN)
        yield made


async def kill_nats(machine: Machine) -> None:
    machine.nats.kill()
    await asyncio.sleep(1)
    await machine.nats.restart()


async def kill_redis(machine: Machine) -> None:
    machine.valkey.kill()
    await asyncio.sleep(1)
    await machine.valkey.restart()


async def kill_services(machine: Machine) -> None:
    for child in machine.services:
        child.kill()
    await asyncio.sleep(1)
    for child in machine.services:
        child.respawn()


async def wipe_redis(machine: Machine) -> None:
    async with Redis.from_url(machine.valkey.url) as redis:
        await redis.flushall()


async def wipe_nats(machine: Machine) -> None:
    machine.nats.kill()
    shutil.rmtree(machine.nats.store_dir / "jetstream")
    await machine.nats.restart()


async def test_t21_after_kills_and_wipes_the_snapshot_equals_the_api_servers(
    machine: Machine,
) -> None:
    for loss in (kill_nats, kill_redis, kill_services, wipe_redis, wipe_nats):
        load = asyncio.create_task(machine.load.run())
        try:
            await asyncio.sleep(2)
            await loss(machine)
            await asyncio.sleep(2)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        try:
            await eventually(machine.is_in_step, WITHIN)
            machine.check()
        except AssertionError as e:
            e.add_note(f"after: {loss.__name__}")
            raise
