"""The processes of a large fleet, and what they use: servers, projector, workers, generators."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec
import yaml
from redis.asyncio import Redis

from bench.programs.fleet_generator import Plan, Report, report_path
from bench.rig.fleet_observer import Observer, Waits, observing
from bench.rig.generated_cluster import PODS
from bench.rig.processes import cpu_seconds, rss_mb
from fleetbus.bus.connection import connected
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from fleetbus_proto.keys import SnapshotKeys
from support.processes.programs import module
from support.processes.services import Processes

CONTROLLERS: Final = str(pathlib.Path(__file__).parents[1] / "programs" / "fleet_controllers.py")
_STOP_PATIENCE: Final = timedelta(seconds=30)
_READY: Final = timedelta(hours=1)
"""Workers are ready when all objects have been looked at once by each controller."""
_LOOK: Final = 0.2
_UNDER_WAY: Final = 32
"""A controller that has no more to do than this keeps up with the changes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of every process at one moment."""

    at: float
    cpu: Mapping[str, float]


@dataclass
class LargeFleet:
    """The running parts.

    Attributes:
        pids: of every process, by name.
    """

    folder: pathlib.Path
    nats: NatsServer
    valkey: ValkeyServer
    apiservers: ApiServers
    redis: Redis
    reader: SnapshotReader
    observer: Observer
    stack: AsyncExitStack
    services: Processes
    pids: dict[str, int]
    plans: dict[str, pathlib.Path] = field(default_factory=dict[str, pathlib.Path])
    children: dict[str, Child] = field(default_factory=dict[str, Child])

    # --- processes ----------------------------------------------------------------------------

    async def start(self, child: Child, *, until_ready: bool = True) -> None:
        self.children[child.name] = child
        self.pids[child.name] = child.pid
        self.stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
        if until_ready:
            await self.services.ready(child, _READY)

    async def start_projector(self) -> None:
        await self.start(self.services.reconciler("projector"))

    async def start_workers(self, name: str, *, wide: int = 0, narrow: int = 0) -> None:
        """One process with these controllers."""
        out = self.folder / "waits"
        out.mkdir(exist_ok=True)
        environment = {
            "BENCH_OUT": str(out),
            "BENCH_WIDE": str(wide),
            "BENCH_NARROW": str(narrow),
        }
        await self.start(
            self.services.reconciler(name, CONTROLLERS, projector=False, **environment)
        )

    async def start_generator(self, name: str, clusters: Sequence[str], **plan: Any) -> None:
        """The watchers of these clusters; they list at once."""
        uids = {each: _uid(self.apiservers.clusters[each]) for each in clusters}
        generator_plan = Plan(nats_url=self.nats.url, clusters=uids, **plan)
        path = self.plans[name] = self.folder / f"{name}.plan"
        path.write_bytes(msgspec.json.encode(generator_plan))
        command = module("bench.programs.fleet_generator", str(path))
        child = Child(name, command, log=self.folder / f"{name}.log", env=os.environ)
        await self.start(child, until_ready=False)

    def begin_changes(self, name: str) -> None:
        """Let a generator change objects from now on."""
        os.kill(self.pids[name], signal.SIGUSR1)

    async def stop_generator(self, name: str) -> Report:
        await self.children[name].stop(patience=_STOP_PATIENCE)
        del self.pids[name]
        path = report_path(self.plans[name])
        if not path.exists():
            raise RuntimeError(f"{name} wrote no report:\n{self.children[name].last_words()}")
        return msgspec.json.decode(path.read_bytes(), type=Report)

    async def stop_workers(self) -> Waits:
        """Stop all of them; how long sampled changes took to a reconcile of those that select all.

        Few objects wake the others.
        """
        for name in [name for name in self.children if name.startswith("worker")]:
            await self.children[name].stop(patience=_STOP_PATIENCE)
            del self.pids[name]
        waits: Waits = []
        for path in (self.folder / "waits").glob("*.json"):
            for controller, cluster, planned, wait in json.loads(path.read_text()):
                if controller.startswith("wide"):
                    waits.append((cluster, planned, wait))
        return waits

    def join(self, names: Sequence[str]) -> None:
        """Make these clusters the fleet."""
        kubeconfig = self.apiservers.kubeconfig()
        chosen = set(names)
        lists = {
            section: [each for each in value if each["name"] in chosen]
            for section, value in kubeconfig.items()
            if section in ("clusters", "contexts")
        }
        path = self.services.kubeconfig
        beside = path.with_suffix(".new")
        beside.write_text(
            yaml.dump({**kubeconfig, "current-context": "", **lists}, Dumper=yaml.CSafeDumper)
        )
        beside.replace(path)

    # --- waiting ------------------------------------------------------------------------------

    async def synced(self, names: Sequence[str], objects: int, within: float) -> float:
        """Wait until the snapshot is complete and holds so many objects; seconds it took."""
        begun = time.monotonic()
        while True:
            looked = time.monotonic()
            if await self._is_synced(names, objects):
                return time.monotonic() - begun
            for child in self.children.values():
                child.raise_if_ended()
            if looked - begun > within:
                raise RuntimeError(f"the snapshot is not complete after {within:.0f} s")
            # To look at a thousand clusters takes time that others need.
            await asyncio.sleep(max(_LOOK, 20 * (time.monotonic() - looked)))

    async def _is_synced(self, names: Sequence[str], objects: int) -> bool:
        by_cluster = await self.reader.freshness(names, PODS.key)
        if not all(freshness.is_complete for freshness in by_cluster.values()):
            return False
        return sum([await self.reader.count(name, PODS.key) for name in names]) == objects

    async def drained(self, controllers: Sequence[str], within: float) -> tuple[int, float]:
        """Wait until these controllers have nothing to do; how much is left, and the seconds."""
        begun = time.monotonic()
        while True:
            left = sum([await self._left(name) for name in controllers])
            waited = time.monotonic() - begun
            if left <= len(controllers) * _UNDER_WAY or waited > within:
                return left, round(waited, 1)
            await asyncio.sleep(_LOOK)

    async def _left(self, controller: str) -> int:
        stats = await RedisQueue(self.redis, controller).stats()
        return sum(stats.depth.values()) + stats.processing + stats.delayed

    # --- what is used -------------------------------------------------------------------------

    def usage(self) -> Usage:
        return Usage(time.time(), {name: cpu_seconds(pid) for name, pid in self.pids.items()})

    def cores_since(self, before: Usage) -> dict[str, float]:
        """CPU of each process since then, as a share of one core."""
        now = self.usage()
        passed = now.at - before.at
        return {
            name: round((used - before.cpu.get(name, 0.0)) / passed, 3)
            for name, used in now.cpu.items()
        }

    def memory(self) -> dict[str, float]:
        """Resident memory of each process, in MB."""
        return {name: round(rss_mb(pid), 1) for name, pid in self.pids.items()}

    async def store_bytes(self) -> int:
        """Read how many bytes Valkey has allocated."""
        return int((await self.redis.info("memory"))["used_memory"])


def _uid(cluster: Cluster) -> str:
    namespace = cluster.get("v1/namespaces", None, "kube-system")
    assert namespace is not None
    return str(namespace["metadata"]["uid"])


@asynccontextmanager
async def large_fleet(folder: pathlib.Path, names: Sequence[str]) -> AsyncGenerator[LargeFleet]:
    """NATS, Valkey, and API servers without objects, of which only the identity is read."""
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        apiservers = await stack.enter_async_context(serve([Cluster(name) for name in names]))
        redis = await connect(valkey.url)
        stack.push_async_callback(redis.aclose)
        reader = SnapshotReader(redis, SnapshotKeys())
        services = Processes(folder, folder / "kubeconfig", nats.url, valkey.url, [])
        fleet = LargeFleet(
            folder,
            nats,
            valkey,
            apiservers,
            redis,
            reader,
            Observer(reader),
            stack,
            services,
            {"nats": nats.pid, "valkey": valkey.pid},
        )
        yield fleet


async def observe(fleet: LargeFleet) -> None:
    """Observe sampled changes from now on; the stream must exist."""
    bus = await fleet.stack.enter_async_context(connected(fleet.nats.url, name="bench"))
    fleet.observer = await fleet.stack.enter_async_context(observing(bus, fleet.reader))
