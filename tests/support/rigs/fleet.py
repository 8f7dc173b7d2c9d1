"""A whole fleet in one process: emulated clusters, watchers, reconciler service; real NATS, Valkey.

With FLEETBUS_TEST_KUBECONFIG the clusters are real ones (`servers.real_cluster`).

Each service runs as a task of its own `run` function, so a test can stop and start it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import pathlib
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.process.settings import ProviderSettings, SharedSettings, load_settings
from fleetbus.reconcile import Request, Result
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_agent.main import run as run_agent
from fleetbus_agent.settings import AgentSettings
from fleetbus_emulator.apiserver import ApiServers, Cluster, User, serve
from fleetbus_emulator.apiserver.auth.access import allow_all
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_reconciler.main import run as run_reconciler
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import USUAL as RECONCILER_TIMING
from fleetbus_reconciler.timing import ReconcilerTiming
from fleetbus_watcher.main import run as run_watcher
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import USUAL as WATCHER_TIMING
from fleetbus_watcher.timing import WatcherTiming
from support.eventually import eventually
from support.rigs.mixed_access import every_second, mixed
from support.servers.real_cluster import REAL, real_clusters
from support.stores.initial_sync import is_synced

RESOURCES = ("v1/pods", "apps/v1/deployments", "v1/configmaps")
_STOP_WITHIN = 10
_ADMIN = User("admin", groups=("system:masters", "system:authenticated"))
_WIDE_RECONCILERS, _WIDE_WATCHERS = 3, 2


@dataclass
class Rig:
    """The parts of one fleet; see `fleet_rig`.

    Attributes:
        is_wide: whether what is started without a name of its own is several processes (here:
            services side by side), as in the wide variant of the acceptance scenarios.
        behind_agents: the clusters that the services call through agents, which run.
        closed: those of them whose API servers only their agents reach; only real ones.
    """

    clusters: dict[str, Cluster]
    servers: ApiServers
    kubeconfig: pathlib.Path
    shared: SharedSettings
    redis: Redis
    resources: Sequence[str] = RESOURCES
    is_wide: bool = False
    behind_agents: Collection[str] = ()
    closed: Collection[str] = ()
    watcher_timing: WatcherTiming = WATCHER_TIMING
    reconciler_timing: ReconcilerTiming = RECONCILER_TIMING
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    @property
    def reader(self) -> SnapshotReader:
        return SnapshotReader(self.redis, SnapshotKeys(self.shared.shards))

    def start(self, name: str, body: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.create_task(body, name=name)

    async def stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=_STOP_WITHIN)
        if pending:
            stuck = io.StringIO()
            for other in asyncio.all_tasks():
                other.print_stack(file=stuck)
            raise AssertionError(f"{name} does not stop:\n{stuck.getvalue()}")
        with contextlib.suppress(asyncio.CancelledError):
            task.result()

    def start_watcher(self, cluster: str, *, task: str = "", **settings: Any) -> None:
        """Start a watcher; a second one of a cluster needs a replica and a task of its own."""
        if self.is_wide and not task:
            for number in range(1, _WIDE_WATCHERS):
                other = {"replica": f"{cluster}-{number}", **settings}
                self.start_watcher(cluster, task=f"watcher-{cluster}-{number}", **other)
        chosen = load_settings(
            WatcherSettings,
            **{
                "cluster": cluster,
                "kubeconfig": self._member_kubeconfig(cluster, "watcher"),
                "context": cluster,
                "replica": f"{cluster}-0",
                "resources": self.resources,
                "backoff_first": timedelta(milliseconds=50),
                "backoff_cap": timedelta(seconds=1),
                "audit_shortest": timedelta(),  # only where a test asks for it
                **settings,
            },
        )
        self.start(
            task or f"watcher-{cluster}",
            run_watcher(chosen, self.shared, timing=self.watcher_timing),
        )

    def start_watchers_behind_agents(self, **settings: Any) -> None:
        """Start the watchers that run beside agents: a pool watches what it reaches itself."""
        for cluster in self.behind_agents:
            if f"watcher-{cluster}" not in self._tasks:
                self.start_watcher(cluster, **settings)

    def start_agents(self) -> None:
        """Start the agent of each cluster that is behind one."""
        own = self.kubeconfig.with_name("agents.kubeconfig")  # a test may change that of the fleet
        own.write_text(self.kubeconfig.read_text())
        for cluster in self.behind_agents:
            chosen = load_settings(
                AgentSettings,
                cluster=cluster,
                kubeconfig=self._member_kubeconfig(cluster, "gateway")
                if cluster in self.closed
                else own,
                context=cluster,
                stop_patience=timedelta(seconds=1),
            )
            self.start(f"agent-{cluster}", run_agent(chosen, self.shared))

    def _member_kubeconfig(self, cluster: str, program: str) -> pathlib.Path:
        """That of a program in a cluster; only those of the cluster itself reach a closed one."""
        if cluster not in self.closed:
            return self.kubeconfig
        path = self.kubeconfig.with_name(f"{program}-of-{cluster}.kubeconfig")
        document = cast("Any", self.servers).member_kubeconfig(cluster, program)
        path.write_text(json.dumps(document))
        return path

    async def stop_watcher(self, cluster: str) -> None:
        """Stop all watchers of a cluster."""
        await self._stop_all(f"watcher-{cluster}")

    def start_reconciler(self, *controllers: Controller, name: str = "", **settings: Any) -> None:
        """Start the service; side by side all of them have the same controllers, as objects."""
        chosen = load_settings(ReconcilerSettings, **settings)
        others = range(1, _WIDE_RECONCILERS) if self.is_wide and not name else ()
        for task in (name or "reconciler", *(f"reconciler-{number}" for number in others)):
            timing = self.reconciler_timing
            self.start(task, run_reconciler(chosen, self.shared, controllers, timing=timing))

    async def stop_reconciler(self) -> None:
        """Stop the service, in all its processes."""
        await self._stop_all("reconciler")

    async def _stop_all(self, name: str) -> None:
        """Stop one that was started, and those beside it."""
        for task in [
            task_name
            for task_name in self._tasks
            if task_name == name or task_name[:-1] == f"{name}-"
        ]:
            await self.stop(task)

    async def synced(self, *resources: str, within: timedelta = timedelta(seconds=20)) -> None:
        """Wait until the snapshot is complete for these resource keys in every cluster."""

        async def is_synced() -> bool:
            for key in resources:
                by_cluster = await self.reader.freshness(self.clusters, key)
                if not all(freshness.is_complete for freshness in by_cluster.values()):
                    return False
            return True

        await eventually(is_synced, within=within)

    async def quiet(self, controller: str, within: timedelta = timedelta(seconds=20)) -> None:
        """Wait until the controller has enqueued all it knows and has nothing left to do."""
        queue = RedisQueue(self.redis, controller)

        async def is_quiet() -> bool:
            if not await is_synced(self.redis, controller):
                return False
            stats = await queue.stats()
            return not stats.depth and not stats.processing

        try:
            await eventually(is_quiet, within=within)
        finally:
            await queue.aclose()

    async def aclose(self) -> None:
        failures = [
            task.exception()
            for task in self._tasks.values()
            if task.done() and not task.cancelled()
        ]
        for name in reversed(list(self._tasks)):
            if self._tasks[name].done():
                await self.stop_quietly(name)
            else:
                await self.stop(name)
        for failure in failures:
            if failure is not None:
                raise failure

    async def stop_quietly(self, name: str) -> None:
        with contextlib.suppress(Exception):  # logged already, as the failure that came first
            await self.stop(name)


@asynccontextmanager
async def fleet_rig(
    *names: str,
    folder: pathlib.Path,
    nats_url: str,
    valkey_url: str,
    hub: str = "",
    resources: Sequence[str] = RESOURCES,
    tokens: Mapping[str, str] | None = None,
    is_wide: bool = False,
    shards: int = 1,
    authorize: bool = False,
    has_agents: bool = False,
    direct: Collection[str] = (),
) -> AsyncGenerator[Rig]:
    """Emulated clusters of these names, and what the services need to join them.

    Those that `tokens` names let nobody in without the token; its owner may do everything. With
    `authorize` the RBAC of each cluster decides, as on real ones; the kubeconfig is that of an
    administrator. With `has_agents` every second member is behind an agent, but for those of
    `direct` and of `tokens`; of real ones only the agents reach as many as there are for that.
    """
    never = {*direct, *(tokens or {})}
    behind_agents = every_second(names, hub=hub, direct=never) if has_agents else []
    opened = _clusters(*names, tokens=tokens or {}, rbac=authorize, behind_agents=behind_agents)
    async with opened as (clusters, servers):
        closed = cast("Any", servers).behind_agents if REAL else ()
        kubeconfig = folder / "fleet.kubeconfig"
        if authorize and not REAL:
            servers.write_kubeconfig(kubeconfig, user=_ADMIN)
        else:
            servers.write_kubeconfig(kubeconfig)
        shared = load_settings(
            SharedSettings,
            nats_url=nats_url,
            redis_url=valkey_url,
            shards=shards,
            hub_kubeconfig=kubeconfig if hub else None,
            hub_context=hub,
            hub_cluster=hub,
            providers=[
                ProviderSettings.model_validate(
                    mixed({"type": "kubeconfig", "paths": [str(kubeconfig)]}, behind_agents, closed)
                )
            ],
        )
        redis = await connect(valkey_url)
        rig = Rig(
            clusters, servers, kubeconfig, shared, redis, resources, is_wide, behind_agents, closed
        )
        try:
            rig.start_agents()
            yield rig
        finally:
            try:
                await rig.aclose()
            finally:
                await redis.aclose()


@asynccontextmanager
async def _clusters(
    *names: str, tokens: Mapping[str, str], rbac: bool, behind_agents: Collection[str]
) -> AsyncGenerator[tuple[dict[str, Cluster], ApiServers]]:
    """Emulated clusters, or real ones that tests use in the same way."""
    if REAL:
        if tokens:
            pytest.skip("only an emulated cluster takes a token that a test has made up")
        async with real_clusters(*names, behind_agents=behind_agents) as real:
            yield cast("tuple[dict[str, Cluster], ApiServers]", real)
        return
    users = {name: {token: "somebody"} for name, token in tokens.items()}
    clusters = {
        name: Cluster(
            name,
            bookmark_interval=timedelta(milliseconds=200),
            tokens=users.get(name),
            authorize="rbac" if rbac else allow_all,
        )
        for name in names
    }
    async with serve(list(clusters.values()), tls=rbac) as servers:
        yield clusters, servers


@dataclass(frozen=True)
class Run:
    """One reconcile as the recording controller saw it."""

    request: Request
    started: float
    object: dict[str, Any] | None


@dataclass
class Recorder:
    """A controller that only takes notes."""

    controller: Controller
    resource: str
    runs: list[Run] = field(default_factory=list[Run])
    pause: float = 0.0
    running: set[Request] = field(default_factory=set[Request])

    def __post_init__(self) -> None:
        self.controller.reconcile(self._note)

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        assert request not in self.running, "one key, two runs at a time"
        self.running.add(request)
        try:
            started = asyncio.get_running_loop().time()
            await asyncio.sleep(self.pause)  # a slow reconcile
            obj = await fleet.cluster(request.cluster).get(
                self.resource, request.namespace, request.name
            )
            self.runs.append(Run(request, started, obj))
        finally:
            self.running.discard(request)
        return None

    def of(self, cluster: str, namespace: str, name: str) -> list[Run]:
        return [
            run
            for run in self.runs
            if (run.request.cluster, run.request.namespace, run.request.name)
            == (cluster, namespace, name)
        ]

    def keys(self) -> set[tuple[str, str, str]]:
        return {(r.request.cluster, r.request.namespace, r.request.name) for r in self.runs}
