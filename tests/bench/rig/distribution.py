"""Emulated clusters, and the processes through which a MultiClusterResource reaches them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from bench.rig.config_maps import config_map
from bench.rig.processes import cpu_seconds, peak_mb
from fleetbus.store.connection import connect
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_distributor.controllers import NAME, TARGETS
from fleetbus_emulator.apiserver import ApiServers, Change, Cluster, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.processes.programs import module
from support.processes.services import Processes

HUB: Final = "hub"
OURS: Final = "fleetbus-distributor"
"""The user agent of the distributor."""
RESOURCE: Final = "fleetbus.dev/v1alpha1/multiclusterresources"
MAPS: Final = "v1/configmaps"
_WATCHED: Final = (RESOURCE, "fleetbus.dev/v1alpha1/clusters", MAPS)
_LOOK: Final = 0.02
_READY: Final = timedelta(minutes=5)
_STOP_PATIENCE: Final = timedelta(seconds=20)
_QUIET_LOOKS: Final = 10


@dataclass
class Distribution:
    """The running parts; the API servers are in this process."""

    folder: Path
    servers: ApiServers
    services: Processes
    redis: Redis
    stack: AsyncExitStack
    # When each ConfigMap was last written: (cluster, name) → `time.monotonic()`.
    written: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    distributors: dict[str, Child] = field(default_factory=dict[str, Child])
    pids: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def clusters(self) -> dict[str, Cluster]:
        return self.servers.clusters

    @property
    def hub(self) -> Cluster:
        return self.clusters[HUB]

    @property
    def names(self) -> list[str]:
        """The members."""
        return sorted(name for name in self.clusters if name != HUB)

    # --- processes ----------------------------------------------------------------------------

    async def start(self, child: Child) -> None:
        self.stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
        self.pids[child.name] = child.pid
        await self.services.ready(child, _READY)

    async def start_distributor(
        self, name: str, *, measures_lag: bool = True, **environment: str
    ) -> None:
        """Start one; measuring its lag wakes it 200 times a second."""
        environment = {
            "FLEETBUS_HUB_KUBECONFIG": str(self.services.kubeconfig),
            "FLEETBUS_HUB_CONTEXT": HUB,
            "FLEETBUS_HUB_CLUSTER": HUB,
            "FLEETBUS_ALLOW_LOOPBACK": "1",
            **environment,
        }
        command = (
            module("bench.programs.distributor_process", str(self._lag_file(name)))
            if measures_lag
            else None
        )
        self.distributors[name] = child = self.services.distributor(name, command, **environment)
        await self.start(child)

    async def stop_distributors(self) -> None:
        for name, child in self.distributors.items():
            await child.stop(patience=_STOP_PATIENCE)
            del self.pids[name]
        self.distributors.clear()

    def cpu(self) -> float:
        """CPU seconds of all distributors."""
        return sum(cpu_seconds(child.pid) for child in self.distributors.values())

    def peak_mb(self) -> float:
        return max(peak_mb(child.pid) for child in self.distributors.values())

    def forget_lag(self) -> None:
        for child in self.distributors.values():
            os.kill(child.pid, signal.SIGUSR1)

    async def lag(self) -> dict[str, float]:
        """The longest time for which a distributor's event loop was blocked."""
        for name, child in self.distributors.items():
            self._lag_file(name).unlink(missing_ok=True)
            os.kill(child.pid, signal.SIGUSR2)
        await self.until(lambda: all(self._lag_file(n).exists() for n in self.distributors), 10)
        lags = [json.loads(self._lag_file(name).read_text()) for name in self.distributors]
        return max(lags, key=lambda lag: lag["worst_ms"])

    def _lag_file(self, name: str) -> Path:
        return self.folder / f"{name}.lag"

    # --- objects ------------------------------------------------------------------------------

    def create(self, name: str, clusters: Sequence[str], maps: Iterable[str]) -> None:
        """Create a MultiClusterResource of ConfigMaps."""
        spec = {
            "templates": [config_map(each) for each in maps],
            "placement": {"clusters": [{"name": each} for each in clusters]},
        }
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.hub.create(RESOURCE, body)

    def delete_all(self) -> None:
        for namespace, name in self.hub.names(RESOURCE):
            self.hub.delete(RESOURCE, namespace, name)

    def status(self, name: str) -> dict[str, Any]:
        resource = self.hub.get(RESOURCE, "default", name) or {}
        return resource.get("status") or {}

    def is_ready(self, name: str) -> bool:
        conditions: list[dict[str, str]] = self.status(name).get("conditions") or []
        return bool(conditions) and conditions[0]["status"] == "True"

    # --- waiting ------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], within: float) -> None:
        """Wait until something holds.

        Raises:
            RuntimeError: it does not, in time.
        """
        end = time.monotonic() + within
        while not holds():
            for child in self.distributors.values():
                child.raise_if_ended()
            if time.monotonic() > end:
                raise RuntimeError(f"not so after {within:.0f} s: {self.shortfall()}")
            await asyncio.sleep(_LOOK)

    def shortfall(self) -> str:
        ready = [self.status(name).get("summary") for _, name in self.hub.names(RESOURCE)[:3]]
        return f"{len(self.written)} objects written; {ready}"

    async def quiet(self, within: float = 120) -> None:
        """Wait until nothing is queued, and nobody asks any cluster."""
        end, calm, before = time.monotonic() + within, 0, -1
        while calm < _QUIET_LOOKS:
            now = self.asked(self.clusters)
            busy = [await self._queued(queue) for queue in (NAME, TARGETS)]
            calm = 0 if any(busy) or now != before else calm + 1
            before = now
            if time.monotonic() > end:
                raise RuntimeError(f"not quiet after {within:.0f} s")
            await asyncio.sleep(0.1)

    async def _queued(self, controller: str) -> int:
        stats = await RedisQueue(self.redis, controller).stats()
        return sum(stats.depth.values()) + stats.processing

    def asked(self, clusters: Iterable[str]) -> int:
        """Return how many requests of distributors these clusters have had."""
        return sum(
            request.user_agent == OURS
            for name in clusters
            for request in self.clusters[name].requests
        )

    def forget_requests(self) -> None:
        for cluster in self.clusters.values():
            cluster.requests.clear()


def _observe(distribution: Distribution, name: str) -> Callable[[Change], None]:
    def note(change: Change) -> None:
        if change.resource == "configmaps" and change.type != "DELETED":
            distribution.written[name, change.new["metadata"]["name"]] = time.monotonic()

    return note


@asynccontextmanager
async def distribution(
    folder: Path, members: int, *, watch_members: bool, resources: Sequence[str] = _WATCHED
) -> AsyncGenerator[Distribution]:
    """A hub and members, NATS, Valkey, a projector and a watcher; no distributor yet."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"c{number:04}" for number in range(members)]
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        clusters = [Cluster(name, requests_capacity=100_000) for name in (HUB, *names)]
        servers = await stack.enter_async_context(serve(clusters))
        redis = await connect(valkey.url)
        stack.push_async_callback(redis.aclose)
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        services = Processes(folder, kubeconfig, nats.url, valkey.url, resources)
        opened = Distribution(folder, servers, services, redis, stack)
        opened.pids |= {"nats": nats.pid, "valkey": valkey.pid}
        for definition in crds():
            opened.hub.create(CRDS, definition)
        for name, cluster in servers.clusters.items():
            stack.callback(cluster.subscribe(_observe(opened, name)))
        await opened.start(services.reconciler("projector"))
        watcher = services.pool_watcher("pool") if watch_members else services.watcher(HUB)
        await opened.start(watcher)
        yield opened
