"""The services as processes, with a controller that copies config maps from cluster A to B.

B is behind an agent. Whatever is lost meanwhile, the snapshot ends equal to the API servers, and B
equal to A.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.hostile.careless_copies import COPIER, KEY, MAPS, OBJECTS, Load, data, versions
from support.processes.services import Processes

WITHIN = timedelta(seconds=60)


@dataclass
class Copies:
    """Two clusters, and the processes that copy from the first to the second."""

    clusters: dict[str, Cluster]
    redis_url: str
    keys: SnapshotKeys
    services: list[Child]
    load: Load
    log: Path

    async def is_in_step(self) -> bool:
        """Whether copies and snapshot equal what they are made from."""
        if data(self.clusters["a"]) != data(self.clusters["b"]):
            return False
        try:
            redis = await connect(self.redis_url)
        except StoreError:
            return False
        try:
            reader = SnapshotReader(redis, self.keys)
            freshness_of = await reader.freshness(self.clusters, KEY)
            pages = [
                await reader.list(ListQuery(clusters=[name], resource=KEY))
                for name in self.clusters
            ]
        except (RedisError, StoreError):
            return False
        finally:
            await redis.aclose()
        versions_of = [
            {entry.name: entry.resource_version for entry in page.entries} for page in pages
        ]
        is_complete = all(freshness.is_complete for freshness in freshness_of.values())
        return is_complete and versions_of == [
            versions(cluster) for cluster in self.clusters.values()
        ]

    def check(self) -> None:
        """Nothing was deleted without an order, and no object had two runs at a time."""
        deletes = [r for r in self.clusters["b"].requests if r.verb.startswith("delete")]
        assert {r.path.rpartition("/")[2] for r in deletes} <= self.load.deleted
        runs = sorted(json.loads(line) for line in self.log.read_text().splitlines())
        for (name, _, ended), (other, started, _) in itertools.pairwise(runs):
            assert name != other or ended <= started, f"two runs at a time: {name}"


@asynccontextmanager
async def copies_rig(
    folder: Path, nats_url: str, redis_url: str, *, shards: int = 1, projectors: int = 1
) -> AsyncGenerator[Copies]:
    """Start everything, and wait until the first objects are copied."""
    async with AsyncExitStack() as stack:
        clusters = {name: Cluster(name) for name in ("a", "b")}
        servers = await stack.enter_async_context(serve(list(clusters.values())))
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        log = folder / "copier.log"
        log.touch()
        start = Processes(folder, kubeconfig, nats_url, redis_url, [MAPS], behind_agents=["b"])
        environment = {"COPIER_LOG": str(log), "FLEETBUS_SHARDS": str(shards)}
        services = [
            start.reconciler(f"reconciler-{n}", COPIER, projector=n < projectors, **environment)
            for n in range(2)
        ]
        services += [*(start.watcher(name) for name in clusters), start.agent("b")]
        for child in services:
            stack.push_async_callback(child.stop)
        keys = SnapshotKeys(shards)
        copies = Copies(clusters, redis_url, keys, services, Load(clusters["a"]), log)
        for number in range(OBJECTS):
            copies.load.write(f"m{number}")
        await eventually(copies.is_in_step, WITHIN)
        yield copies
