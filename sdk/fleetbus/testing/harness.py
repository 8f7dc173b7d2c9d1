"""Runs controllers on emulated clusters for tests; `fleetbus.testing` exports it to authors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from redis.asyncio import Redis

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters, MakeClient
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.kube.requests import read_path
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import connect
from fleetbus.testing.emulated import open_feed, shared_store
from fleetbus.testing.runner import WITHIN, ControllerRunner, Reconciled
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.keys import SnapshotKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus.controller.controller import Controller
    from fleetbus.fleet.fleet import Fleet
    from fleetbus.testing.emulated import EmulatedCluster, EmulatedFleet, FedType, Feed
    from fleetbus_proto.events import Event

_MARK: Final = "fleetbus-testing"
_WRITES: Final = ("create", "update", "patch", "delete", "deletecollection")
_AGENT: Final = "fleetbus"
UNWATCHED: Final = frozenset(
    {"core/secrets", "core/events", "events.k8s.io/events", "coordination.k8s.io/leases"}
)
"""Resources that no watcher reports unless a controller watches them."""


Deliver: TypeAlias = "Callable[[list[Event]], list[Event]]"
"""Maps the events committed since the last call to those delivered now."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write request that reached an API server."""

    cluster: str
    verb: str
    """`create`, `update`, `patch`, `delete` or `deletecollection`."""
    resource: str
    """Like `apps/v1/deployments`; followed by `/status` for a subresource."""
    namespace: str
    name: str
    """Empty for `create`."""
    status: int
    """Status of the response, like 201; 0 if there was none."""


class ControllerTest:
    """Controllers under test; see `fleetbus.testing.controller_test`.

    Attributes:
        clusters: the emulated clusters, by name.
        fleet: the fleet that the reconcile functions are given.
    """

    def __init__(
        self,
        clusters: EmulatedFleet,
        runner: ControllerRunner,
        feeds: Mapping[str, Feed],
        deliver: Deliver,
    ) -> None:
        self.clusters = clusters
        self.fleet: Fleet = runner.fleet
        self._deliver = deliver
        self._runner = runner
        self._feeds = feeds
        self._known: dict[str, set[str]] = {name: set() for name in feeds}
        watched = [
            watch.resource for controller in runner.controllers for watch in controller.watches
        ]
        self._unwatched = UNWATCHED - {resource.key for resource in watched if resource}

    @property
    def requests(self) -> Sequence[Reconciled]:
        """All runs of the reconcile functions, in the order in which they ended."""
        return self._runner.requests

    @property
    def writes(self) -> Sequence[Write]:
        """All write requests of the controllers, by cluster, in order."""
        return [write for cluster in self.clusters.clusters for write in _writes(cluster)]

    @property
    def now(self) -> datetime:
        """The time of the queues; only `advance` and retries move it."""
        return self._runner.now

    async def run_until_idle(self, *, within: timedelta = WITHIN) -> None:
        """Run until watch, snapshot and queue have nothing left to do.

        Failures are retried without waiting, up to ten times. Timers (`requeue_after`) do not
        fire: see `advance`.

        Args:
            within: the limit, in real time.

        Raises:
            NotIdle: a request keeps failing, or the limit was reached; the message has the rest.
        """
        await self._runner.run_until_idle(self._pull, within=within)

    async def advance(self, by: timedelta, *, within: timedelta = WITHIN) -> None:
        """Advance the clock of the controllers, without waiting.

        Each timer up to then fires at its time, and its work is done before the next one fires.
        The system clock does not change: `datetime.now()` is unaffected.

        Args:
            by: how much.
            within: the limit for the work after each timer, in real time.

        Raises:
            NotIdle: as `run_until_idle`.
        """
        await self._runner.advance(by, self._pull, within=within)

    async def _pull(self) -> bool:
        """Feed committed writes; return whether there were any."""
        events = await self._take_events()
        if not events:
            await self._settle()
            events = await self._take_events()
        delivered = self._deliver(events)
        await self._runner.feed(delivered)
        return bool(delivered)

    async def _take_events(self) -> list[Event]:
        events: list[Event] = []
        for name, feed in self._feeds.items():
            events += [e for e in feed.take() if e.resource_key not in self._unwatched]
            await self._announce_types(name, feed)
        return events

    async def _settle(self) -> None:
        """Wait until the simulated workloads and namespaces are settled; they run in a thread."""

        def settle() -> None:
            for cluster in self.clusters.clusters:
                cluster.settle()

        await asyncio.to_thread(settle)

    async def _announce_types(self, cluster: str, feed: Feed) -> None:
        """Mark new resources as synced in the snapshot (rule P14)."""
        known_keys = self._known[cluster]
        records = [_record(fed_type) for fed_type in feed.types()]
        new = {r.key: r for r in records if r.key not in known_keys | self._unwatched}
        if new:
            encoded: Any = {key: msgspec.json.encode(r) for key, r in new.items()}
            await self._runner.redis.hset(self._runner.keys.resources(cluster), mapping=encoded)
            known_keys |= new.keys()


def _record(fed_type: FedType) -> ResourceRecord:
    return ResourceRecord(
        group=fed_type.group,
        version=fed_type.version,
        plural=fed_type.plural,
        kind=fed_type.kind,
        namespaced=fed_type.namespaced,
        state=ResourceState.SYNCED,
        last_received=utc_now(),
        epoch="1 1",
    )


def _writes(cluster: EmulatedCluster) -> list[Write]:
    writes: list[Write] = []
    for request in cluster.requests:
        if request.verb not in _WRITES or not request.user_agent.startswith(_AGENT):
            continue
        try:
            resource, namespace, name, subresource = read_path(request.path)
        except InvalidName:
            continue
        full = f"{resource}/{subresource}" if subresource else str(resource)
        writes.append(Write(cluster.name, request.verb, full, namespace, name, request.status))
    return writes


class StaticProvider:
    """A provider of a fixed set of clusters."""

    name = "test"

    def __init__(self, infos: Sequence[ClusterInfo]) -> None:
        self._infos = list(infos)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the one set."""
        yield self._infos


@asynccontextmanager
async def harness(
    controllers: Sequence[Controller],
    clusters: EmulatedFleet,
    *,
    labels: Mapping[str, Mapping[str, str]],
    hub: str,
    store: str,
    deliver: Deliver = lambda events: events,
    make_client: MakeClient | None = None,
) -> AsyncGenerator[ControllerTest]:
    """Run controllers on running emulated clusters; see `controller_test`."""
    infos = [
        ClusterInfo(
            name=name,
            labels=labels.get(name, {}),
            hub=name == hub,
            provider=StaticProvider.name,
            config=read_kube_config(clusters.kubeconfig, name),
        )
        for name in clusters.names
    ]
    if unknown := sorted({*labels, *([hub] if hub else [])} - set(clusters.names)):
        raise ConfigError(f"this test has no cluster {unknown[0]!r}")
    async with AsyncExitStack() as stack:
        redis = await connect(store or shared_store())
        stack.push_async_callback(redis.aclose)
        await empty_store(redis)
        registry = Clusters([StaticProvider(infos)], make_client=make_client)
        runner = ControllerRunner(controllers, redis, registry)
        for name in clusters.names:
            await runner.writer.put_cluster(
                name, ClusterRecord(name=name, connected=True, last_answer=utc_now())
            )
        feeds = {cluster.name: open_feed(cluster) for cluster in clusters.clusters}
        stack.push_async_callback(runner.aclose)
        await runner.start()
        yield ControllerTest(clusters, runner, feeds, deliver)


async def empty_store(redis: Redis) -> None:
    """Empty a store, if it holds only data of a test.

    Raises:
        ConfigError: it holds other data.
    """
    if await redis.dbsize() and not await redis.exists(_MARK):
        raise ConfigError("the store of a test must be empty, and this one holds other data")
    await redis.flushdb()
    await redis.set(_MARK, "1")
    await SnapshotWriter(redis, SnapshotKeys()).ensure_generation()
