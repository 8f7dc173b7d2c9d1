"""Tests of controllers: emulated clusters, the SDK's own way from change to reconcile, no waiting.

`fleetbus.testing` is where authors find it.
"""

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
from fleetbus_proto import keys
from fleetbus_proto.errors import InvalidName

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
"""What no watcher tells of unless it is asked to."""


Deliver: TypeAlias = "Callable[[list[Event]], list[Event]]"
"""From what was committed since the last call to what the controllers are told now."""


@dataclass(frozen=True, slots=True)
class Write:
    """One request to change something that reached an API server."""

    cluster: str
    verb: str
    """`create`, `update`, `patch`, `delete` or `deletecollection`."""
    resource: str
    """Like `apps/v1/deployments`; with `/status` behind it for a part of the object."""
    namespace: str
    name: str
    """Empty for `create`."""
    status: int
    """Of the answer, like 201; 0 if there was none."""


class ControllerTest:
    """Controllers under test; see `fleetbus.testing.controller_test`.

    Attributes:
        clusters: the emulated clusters, by name.
        fleet: what the reconcile functions are given.
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
        watched = [watch.resource for one in runner.controllers for watch in one.watches]
        self._unwatched = UNWATCHED - {resource.key for resource in watched if resource}

    @property
    def requests(self) -> Sequence[Reconciled]:
        """All runs of the reconcile functions, in the order of their ends."""
        return self._runner.requests

    @property
    def writes(self) -> Sequence[Write]:
        """All that the controllers asked API servers to change, cluster by cluster, in order."""
        return [write for cluster in self.clusters.clusters for write in _writes(cluster)]

    @property
    def now(self) -> datetime:
        """The time by which requeues become due; only `advance` and retries move it."""
        return self._runner.now

    async def run_until_idle(self, *, within: timedelta = WITHIN) -> None:
        """Work until watch, snapshot and queue have nothing more to do.

        What fails is retried without waiting, up to ten times. Timers (`requeue_after`) are not
        waited for: see `advance`.

        Args:
            within: how long that may take, in real time.

        Raises:
            NotIdle: a request keeps failing, or there is no end; the message says what is left.
        """
        await self._runner.run_until_idle(self._pull, within=within)

    async def advance(self, by: timedelta, *, within: timedelta = WITHIN) -> None:
        """Let so much time pass for the controllers, without waiting for it.

        Each timer on the way fires at its time, and what follows from it is done before the next.
        The clock of the machine is not moved: `datetime.now()` stays what it is.

        Args:
            by: how much.
            within: how long the work after one timer may take, in real time.

        Raises:
            NotIdle: as `run_until_idle`.
        """
        await self._runner.advance(by, self._pull, within=within)

    async def _pull(self) -> bool:
        """Feed what was committed; answers whether there was anything."""
        events = await self._taken()
        if not events:
            await self._settle()
            events = await self._taken()
        delivered = self._deliver(events)
        await self._runner.feed(delivered)
        return bool(delivered)

    async def _taken(self) -> list[Event]:
        events: list[Event] = []
        for name, feed in self._feeds.items():
            events += [e for e in feed.take() if e.resource_key not in self._unwatched]
            await self._announce_types(name, feed)
        return events

    async def _settle(self) -> None:
        """Let what simulates workloads and namespaces come to rest; it runs in another thread."""

        def settle() -> None:
            for cluster in self.clusters.clusters:
                cluster.settle()

        await asyncio.to_thread(settle)

    async def _announce_types(self, cluster: str, feed: Feed) -> None:
        """Tell the snapshot which resources it has wholly (rule P14)."""
        known = self._known[cluster]
        records = [_record(found) for found in feed.types()]
        new = {r.key: r for r in records if r.key not in known | self._unwatched}
        if new:
            encoded: Any = {key: msgspec.json.encode(r) for key, r in new.items()}
            await self._runner.redis.hset(keys.resources(cluster), mapping=encoded)
            known |= new.keys()


def _record(found: FedType) -> ResourceRecord:
    return ResourceRecord(
        group=found.group,
        version=found.version,
        plural=found.plural,
        kind=found.kind,
        namespaced=found.namespaced,
        state=ResourceState.SYNCED,
        last_received=utc_now(),
        epoch="1 1",
    )


def _writes(cluster: EmulatedCluster) -> list[Write]:
    found: list[Write] = []
    for request in cluster.requests:
        if request.verb not in _WRITES or not request.user_agent.startswith(_AGENT):
            continue
        try:
            resource, namespace, name, part = read_path(request.path)
        except InvalidName:
            continue
        said = f"{resource}/{part}" if part else str(resource)
        found.append(Write(cluster.name, request.verb, said, namespace, name, request.status))
    return found


class StaticProvider:
    """A provider of clusters that neither come nor go."""

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
    """Controllers on emulated clusters that run already; the rest of `controller_test`."""
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
        raise ConfigError(f"there is no cluster {unknown[0]!r} in this test")
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
    """Make a store empty, if nobody else's data are in it.

    Raises:
        ConfigError: it holds something that is not of a test.
    """
    if await redis.dbsize() and not await redis.exists(_MARK):
        raise ConfigError("the store of a test must be empty: something else is in this one")
    await redis.flushdb()
    await redis.set(_MARK, "1")
    await SnapshotWriter(redis).ensure_generation()
