"""Watchers of the pool, emulated clusters, a hub that names them, and a real NATS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.process.settings import ProviderSettings, SharedSettings, load_settings
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import kv_checkpoint
from fleetbus_watcher.main import ANY_CLUSTER, run, run_pool
from fleetbus_watcher.pool.records import PoolStore
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from fleetbus_watcher.timing import WatcherTiming
from support.eventually import eventually
from support.processes import watcher as watcher_process
from support.rigs import watcher as watcher_rig
from support.rigs.watcher import CONFIG_MAPS, QUICK, QUICK_TIMING, mirror, read_stream

LEASE = timedelta(seconds=0.7)
_NAMESPACE = "fleet"
_SECRETS = "v1/secrets"
_PROVIDER = {"type": "secrets", "namespace": _NAMESPACE}


@dataclass
class PoolRig:
    """A hub, clusters that may be in the fleet, and the members of the pool."""

    hubs: dict[str, Cluster]
    clusters: dict[str, Cluster]
    servers: ApiServers
    bus: Bus
    nats_url: str
    folder: Path
    timing: WatcherTiming = QUICK_TIMING
    _members: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    # --- the fleet ----------------------------------------------------------------------------

    def join(self, *names: str, hub: str = "hub") -> None:
        for name in names:
            self.hubs[hub].create(_SECRETS, self._secret(name), _NAMESPACE)

    def leave(self, name: str) -> None:
        self.hubs["hub"].delete(_SECRETS, _NAMESPACE, name)

    def change(self, name: str, **changed: Any) -> None:
        """Patch the Secret of a cluster: its `metadata`, or its `data`."""
        self.hubs["hub"].patch(_SECRETS, _NAMESPACE, name, changed)

    def kubeconfig(self, name: str, *, token: str = "", **changed: Any) -> dict[str, str]:
        """The data of a Secret; with a token, as that user."""
        document: dict[str, Any] = self.servers.kubeconfig()
        document |= {"current-context": name} | changed
        if token:
            users = [{**user, "user": {"token": token}} for user in document["users"]]
            document |= {"users": users}
        return {"kubeconfig": base64.b64encode(json.dumps(document).encode()).decode()}

    def _secret(self, name: str) -> dict[str, Any]:
        metadata = {"name": name, "labels": {"fleetbus.dev/kubeconfig": "true"}}
        return {"metadata": metadata, "data": self.kubeconfig(name)}

    # --- members ------------------------------------------------------------------------------

    def start(self, member: str, *, hub: str = "hub", nats_url: str = "", **settings: Any) -> Path:
        """A member in this process; answers the file with the port of its probes."""
        pool = {name: settings.pop(name) for name in ("selector", "hand_over") if name in settings}
        chosen = QUICK | settings | {"cluster": ANY_CLUSTER, "replica": member}
        shared = SharedSettings(
            nats_url=nats_url or self.nats_url,
            providers=[ProviderSettings.model_validate(_PROVIDER)],
            hub_kubeconfig=self.hub_kubeconfig(),
            hub_context=hub,
            health_port_file=self.folder / f"{member}.port",
        )
        self._members[member] = asyncio.create_task(
            run_pool(
                load_settings(WatcherSettings, **chosen),
                PoolSettings(lease=LEASE, **pool),
                shared,
                timing=self.timing,
            ),
            name=member,
        )
        return self.folder / f"{member}.port"

    def hub_kubeconfig(self) -> Path:
        path = self.folder / "hub.kubeconfig"
        if not path.exists():
            self.servers.write_kubeconfig(path)
        return path

    async def stop(self, *members: str) -> None:
        """Stop in good order, like SIGTERM; without an argument all at once."""
        stopping = [self._members.pop(member) for member in members or tuple(self._members)]
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)

    def forget(self, member: str) -> asyncio.Task[None]:
        """A member that the test stops, so that another may have its name."""
        return self._members.pop(member)

    @contextlib.asynccontextmanager
    async def watching(self, cluster: str, replica: str) -> AsyncGenerator[None]:
        """A watcher of one cluster beside the pool."""
        chosen = QUICK | {"cluster": cluster, "replica": replica, "context": cluster}
        settings = load_settings(WatcherSettings, kubeconfig=self.hub_kubeconfig(), **chosen)
        shared = SharedSettings(nats_url=self.nats_url)
        task = asyncio.create_task(run(settings, shared, timing=self.timing))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def is_running(self, member: str) -> bool:
        return not self._members[member].done()

    @contextlib.asynccontextmanager
    async def process(self, member: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A member as a process of its own, to be killed and stopped."""
        async with watcher_process.running(
            *("--pool", "--replica", member),
            nats_url=self.nats_url,
            FLEETBUS_PROVIDERS=json.dumps([_PROVIDER]),
            FLEETBUS_HUB_KUBECONFIG=str(self.hub_kubeconfig()),
            FLEETBUS_HUB_CONTEXT="hub",
            FLEETBUS_WATCHER_POOL_LEASE=f"{LEASE.total_seconds()}s",
        ) as child:
            yield child

    # --- who works ----------------------------------------------------------------------------

    async def owners(self) -> dict[str, str]:
        """Cluster → member, as the leases say."""
        return {name: lease.member for name, lease in (await self.leases()).items()}

    async def leases(self) -> dict[str, Any]:
        return dict(await PoolStore(self.bus, KeyValue(self.bus)).leases())

    async def has_shared(self, *members: str, clusters: Sequence[str] = ()) -> dict[str, str]:
        """The owners, once each of these members has some cluster and each cluster one watch."""
        owners = await self.owners()
        expected = set(clusters or self.clusters)
        is_so = owners.keys() == expected and set(owners.values()) == set(members)
        return owners if is_so and self.are_watched_once(*expected) else {}

    async def shared(self, *members: str, clusters: Sequence[str] = ()) -> dict[str, str]:
        return await eventually(lambda: self.has_shared(*members, clusters=clusters))

    def are_watched_once(self, *names: str) -> bool:
        return all(self.clusters[name].open_watches == 1 for name in names or self.clusters)

    async def have_checkpoints(self, *names: str) -> bool:
        """Whether whoever is next can go on without a list."""
        kv = KeyValue(self.bus)
        keys = [kv_checkpoint(name, "core", "configmaps", "") for name in names or self.clusters]
        return all([await kv.get(key) is not None for key in keys])

    def watches_opened(self, name: str) -> int:
        """Watches of the config maps, ever."""
        return len(watcher_rig.requests(self.clusters[name], "watch"))

    def lives(self, name: str) -> int:
        """Return how often the work for a cluster has begun: each asks for the version once."""
        return sum(r.path == "/version" for r in self.clusters[name].requests)

    def lists(self, name: str) -> int:
        """Lists of the config maps, without the probes before watches."""
        return len(watcher_rig.requests(self.clusters[name], "list"))

    # --- what they report ----------------------------------------------------------------------

    def write(self, cluster: str, name: str, value: str = "v") -> None:
        watcher_rig.write(self.clusters[cluster], name, value)

    def remove(self, cluster: str, name: str) -> None:
        self.clusters[cluster].delete(CONFIG_MAPS, "default", name)

    async def are_mirrored(self, *names: str) -> bool:
        """Whether the stream's last state of each object is the API server's."""
        by_cluster: dict[str, list[Any]] = {}
        for stored in await read_stream(self.bus):
            if isinstance(stored.message, (Event, EpochEnd)):
                by_cluster.setdefault(stored.message.cluster, []).append(stored.message)
        return all(
            mirror(by_cluster.get(name, [])) == watcher_rig.truth(self.clusters[name])
            for name in names or self.clusters
        )

    async def repeated(self) -> list[str]:
        """The message ids that the stream holds twice."""
        ids = Counter(s.headers["Nats-Msg-Id"] for s in await read_stream(self.bus))
        return [name for name, count in ids.items() if count > 1]


@contextlib.asynccontextmanager
async def pool_rig(nats_url: str, folder: Path, *names: str) -> AsyncGenerator[PoolRig]:
    """Clusters that nobody has joined yet, and a stream and a bucket that exist."""
    hubs = {name: Cluster(name) for name in ("hub", "elsewhere")}
    for hub in hubs.values():
        hub.create("v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    clusters = {
        name: Cluster(name, bookmark_interval=timedelta(milliseconds=200)) for name in names
    }
    async with (
        serve([*hubs.values(), *clusters.values()]) as servers,
        connected(nats_url, name="test") as bus,
    ):
        await ensure_stream(bus)
        await ensure_bucket(bus)
        rig = PoolRig(hubs, clusters, servers, bus, nats_url, folder)
        try:
            yield rig
        finally:
            await rig.stop()
