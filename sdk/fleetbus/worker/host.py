"""Runs controllers in a process: bus → snapshot → queue → workers.

For each controller: register its watch set, bind the durable that the projector makes, and only
then enqueue what the snapshot already knows, never the reverse: a change between the two steps
would be lost (rule P12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus import metrics, tracing
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durables import RESERVED_NAMES, consumer_info, filters_for, tell_primed
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.line import ByCluster, Delivery
from fleetbus.bus.replay import replay_deletions
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers import build_clusters
from fleetbus.clusters.registry import Clusters
from fleetbus.controller import Controller
from fleetbus.errors import ConfigError, FleetbusError
from fleetbus.fingerprint import fingerprint
from fleetbus.fleet import Fleet
from fleetbus.health import Health
from fleetbus.intake.binding import Binding
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.record import Record
from fleetbus.intake.routing import How, Router
from fleetbus.intake.watch_doubts import absent_clusters, unwatched_resources
from fleetbus.settings import SharedSettings
from fleetbus.snapshot.beacon import Beacon
from fleetbus.snapshot.beacons import claimed
from fleetbus.snapshot.connection import connect
from fleetbus.snapshot.read import SnapshotReader
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.worker.blocked import telling_of_blocks
from fleetbus.worker.exits import containing_exits
from fleetbus.worker.priming import PrimedElsewhere, PrimingLog
from fleetbus.worker.queue_weights import QueueWeights
from fleetbus.worker.worker import Worker
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.heartbeat import Heartbeat, connect_blocking
from fleetbus.workqueue.queue import QueuePolicy
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_proto.events import Event
from fleetbus_proto.keys import beacon
from fleetbus_proto.keys import queue as queue_key
from fleetbus_proto.subjects import STREAM

log = structlog.get_logger()

_LOOK_EVERY: Final = timedelta(seconds=2)
_LOOK_EAGERLY: Final = timedelta(milliseconds=100)
_FIRST_DEBT: Final = timedelta(seconds=30)
_LONGEST_DEBT: Final = timedelta(seconds=1000)
_FLEET_WITHIN: Final = timedelta(seconds=5)
_TURN_WITHIN: Final = timedelta(seconds=60)
_TIDY_EVERY: Final = timedelta(seconds=60)
"""How often what was seen of clusters that left is looked for."""
_RECENT: Final = timedelta(seconds=60)
"""How far back a store may have gone, for what is on no stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a process that hosts controllers is connected to."""

    settings: SharedSettings
    bus: Bus
    kv: KeyValue
    redis: Redis
    writer: SnapshotWriter
    reader: SnapshotReader
    clusters: Clusters
    fleet: Fleet


@asynccontextmanager
async def linked(settings: SharedSettings, *, name: str) -> AsyncGenerator[Links]:
    """Connect to NATS and Redis and build the registry; `links.clusters.run()` is the caller's.

    Args:
        settings: where they are.
        name: who we are, like `reconciler`.

    Raises:
        ConfigError: the providers cannot be built.
        StoreError: Redis is unusable.
        BusError: NATS is unusable.
    """
    clusters = build_clusters(settings)
    redis = await connect(settings.redis_url)
    try:
        async with connected(settings.nats_url, name=name) as bus:
            reader = SnapshotReader(redis)
            yield Links(
                settings=settings,
                bus=bus,
                kv=KeyValue(bus),
                redis=redis,
                writer=SnapshotWriter(redis),
                reader=reader,
                clusters=clusters,
                fleet=Fleet(clusters, reader),
            )
    finally:
        await clusters.aclose()
        await redis.aclose()


def check_controllers(controllers: Sequence[Controller]) -> None:
    """Check that controllers are whole and their names differ.

    Raises:
        ConfigError: one is not.
    """
    found: dict[str, Controller] = {}
    for controller in controllers:
        name, place = controller.name, controller.place
        if name in RESERVED_NAMES:
            raise ConfigError(f"the controller name {name!r} is reserved, see {place}")
        if other := found.get(name):
            raise ConfigError(f"two controllers are named {name}: {other.place} and {place}")
        found[name] = controller
        controller.function()


async def run_controllers(
    controllers: Sequence[Controller],
    links: Links,
    health: Health,
    *,
    policy: QueuePolicy | None = None,
) -> None:
    """Run controllers until cancelled.

    Raises:
        ConfigError: a controller is not whole.
        BaseExceptionGroup: NATS refuses us for good (rule B13), or a loop failed.
    """
    check_controllers(controllers)
    async with telling_of_blocks(), containing_exits(), asyncio.TaskGroup() as group:
        group.create_task(links.bus.failure(), name="bus failure")
        for controller in controllers:
            one = _Hosted(controller, links, health, policy or QueuePolicy())
            group.create_task(one.run(), name=f"controller {controller.name}")


class _Debts:
    """Clusters of which something could not be mapped; each is tried again ever more slowly."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._delays: dict[str, float] = {}

    def owe(self, cluster: str) -> None:
        """Something of this cluster was not enqueued."""
        if cluster not in self._due:
            delay = self._delays.get(cluster, _FIRST_DEBT.total_seconds())
            self._delays[cluster] = min(2 * delay, _LONGEST_DEBT.total_seconds())
            self._due[cluster] = time.monotonic() + delay

    def take_due(self) -> list[str]:
        """What is to be tried now; it owes again what fails again."""
        now = time.monotonic()
        due = [cluster for cluster, at in self._due.items() if at <= now]
        for cluster in due:
            del self._due[cluster]
        return due

    def paid(self, cluster: str) -> None:
        """It was tried; unless it failed again, the next debt starts with the short delay."""
        if cluster not in self._due:
            self._delays.pop(cluster, None)

    def forgive(self, cluster: str) -> None:
        """The cluster left."""
        self._due.pop(cluster, None)
        self._delays.pop(cluster, None)


class _Hosted:
    """One controller in this process."""

    def __init__(
        self, controller: Controller, links: Links, health: Health, policy: QueuePolicy
    ) -> None:
        self._controller = controller
        self._links = links
        self._health = health
        self._policy = policy
        self._filters = filters_for(watch.resource for watch in controller.watches)
        self._debts = _Debts()
        self._router = Router(
            controller, clusters=links.clusters, fleet=links.fleet, owe=self._debts.owe
        )
        self._queue = RedisQueue(links.redis, controller.name, policy=policy)
        self._record = Record(links.redis, controller)
        self._intake = Intake(
            self._router, queue=self._queue, record=self._record, reader=links.reader
        )
        self._full = FullEnqueue(
            controller,
            router=self._router,
            intake=self._intake,
            record=self._record,
            reader=links.reader,
        )
        self._beacon = Beacon(
            bus=links.bus,
            redis=links.redis,
            consumer=controller.name,
            handle=self._handle,
            on_return=self._enqueue_recent,
        )
        self._beat = health.pulse(f"consumer {controller.name}", _TURN_WITHIN)
        self._durable = ""
        """What we are bound to; empty while we are not."""
        self._told = ""
        """The durable that the projector was told of as primed."""
        self._primed = False
        self._has_warned = False
        self._weights = QueueWeights()
        self._is_code_known = False
        self._is_fleet_awaited = False
        self._tidy_at = 0.0
        self._changed: set[str] = set()
        """Clusters that joined or changed since the last look."""
        self._enqueued: dict[str, float] = {}
        """When a cluster that had changed was enqueued."""
        self._seen: dict[str, ClusterInfo] = {}
        self._look = asyncio.Event()
        """Set when priming has something to do."""
        metrics.create_controller_metrics(controller.name)
        health.ready_when(
            f"controller {controller.name}",
            lambda: "" if self._primed else "not bound to the bus yet",
        )

    async def run(self) -> None:
        self._links.clusters.on_change(self._note_change)
        self._note_change()
        worker = Worker(
            controller=self._controller,
            queue=self._queue,
            make_heartbeat=lambda on_lost: Heartbeat(
                connect_blocking(self._links.settings.redis_url, self._policy),
                self._controller.name,
                policy=self._policy,
                on_lost=on_lost,
            ),
            fleet=self._links.fleet,
            record=self._record,
        )
        name = self._controller.name
        turn = self._health.pulse(f"worker {name}", _TURN_WITHIN)
        worker.on_turn(turn)
        worker.wait_before(lambda: self._wait_for_store(turn))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beacon.run(), name=f"beacon {name}")
                group.create_task(self._consume(), name=f"consume {name}")
                group.create_task(worker.run(), name=f"work {name}")
                group.create_task(self._keep_primed(), name=f"prime {name}")
                for loop in self._controller.beside(self._queue, self._links.fleet):
                    group.create_task(loop, name=f"beside {name}")
        finally:
            await self._queue.aclose()

    async def _consume(self) -> None:
        """Consume from the durable that is ours, whichever that is at the time (rule B12)."""
        binding = Binding(
            self._links.bus,
            self._links.kv,
            controller=self._controller.name,
            filters=self._filters,
            beat=self._beat,
        )
        while True:
            durable = await binding.bind()
            self._durable, self._told = durable, ""
            self._beacon.follow(durable, self._filters)
            self._look.set()
            line = ByCluster(metrics.SUPERSEDED.labels(self._controller.name).inc)
            consumer = Consumer(
                self._links.bus.nc, stream=STREAM, durable=durable, handle=self._handle, line=line
            )
            consumer.on_turn(self._beat)
            async with asyncio.TaskGroup() as group:
                consuming = group.create_task(consumer.run(), name=f"pull {durable}")
                await binding.lost(durable)
                self._durable = ""
                self._beacon.follow("")
                consuming.cancel()

    async def _wait_for_store(self, turn: Callable[[], None]) -> None:
        """Pause while the store is empty, or lacks what we did (rules P11, P13).

        At the start also for the fleet, a while: a run would find none of its clusters engaged.
        """
        while not await self._beacon.settled(_LOOK_EVERY):
            turn()
        if not self._is_fleet_awaited:
            self._is_fleet_awaited = True
            with suppress(TimeoutError):  # a provider that is away may not hold up other clusters
                async with asyncio.timeout(_FLEET_WITHIN.total_seconds()):
                    await self._links.clusters.known()

    async def _enqueue_recent(self) -> None:
        """A store that went back may have lost what a changed cluster had enqueued."""
        since = time.monotonic() - _RECENT.total_seconds()
        self._enqueued = {name: at for name, at in self._enqueued.items() if at > since}
        self._changed |= self._enqueued.keys()
        self._look.set()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        """Apply, enqueue; the consumer acknowledges when this returns (rule P9)."""
        name = self._controller.name
        found = [(d.message, d.headers) for d in deliveries if isinstance(d.message, Event)]
        events = [event for event, _ in found]
        traces = [headers.get(tracing.HEADER, "") for _, headers in found]
        consumed = tracing.Consumed(name, events, traces)
        # Nothing is refused here for a cluster this process has not heard of yet: the worker
        # retries what is not engaged and ends what has left.
        with consumed.enqueuing() as carried:
            applied = self._links.writer.apply(events)
            await self._intake.take(events, traces=carried, after=applied)
        metrics.EVENTS_CONSUMED.labels(name).inc(len(deliveries))
        for delivery in deliveries:
            if delivery.message is None:
                metrics.UNREADABLE.labels(name).inc()
                log.error(
                    "message_set_aside",
                    controller=name,
                    subject=delivery.subject,
                    sequence=delivery.sequence,
                    reason=delivery.problem,
                )
        for cluster in {event.cluster for event in events} & self._seen.keys():
            metrics.create_cluster_metrics(name, cluster)

    async def _keep_primed(self) -> None:
        """Enqueue everything for a new durable, a new store, a changed cluster (rule P12)."""
        trouble = PrimingLog(self._controller.name)
        while True:
            try:
                await self._prime()
                trouble.is_over()
            except (RedisError, FleetbusError, WorkqueueError) as e:
                # NATS or Redis is away, or the store was emptied meanwhile: the next look does it.
                trouble.tell(e)
            # Until the first time somebody waits for it: the process is not ready before.
            pause = _LOOK_EVERY if self._primed else _LOOK_EAGERLY
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._look.wait()
            self._look.clear()

    async def _prime(self) -> None:
        durable = self._durable
        token = await self._token(durable) if durable else ""
        if not token:
            return  # not bound, or there is no store yet: binding comes first (P12)
        await self._enqueue_all(token)
        await self._enqueue_for_new_code()
        self._primed = True
        await self._warn_of_unwatched()
        if self._told != durable:
            await tell_primed(self._links.kv, self._controller.name, durable)
            self._told = durable
        while self._changed:
            cluster = self._changed.pop()
            try:
                await self._full.run(cluster=cluster, how=How.LOOK)
            except BaseException:
                self._changed.add(cluster)
                raise
            self._enqueued[cluster] = time.monotonic()
        for cluster in self._debts.take_due():
            self._changed.add(cluster)
            await self._full.run(cluster=cluster, how=How.LOOK)
            self._changed.discard(cluster)
            self._debts.paid(cluster)
        if time.monotonic() >= self._tidy_at:
            await self._full.tidy()
            self._tidy_at = time.monotonic() + _TIDY_EVERY.total_seconds()

    async def _enqueue_all(self, token: str) -> None:
        key = queue_key(self._controller.name, "primed")
        held = cast("bytes | None", await self._links.redis.get(key))
        if held == token.encode():
            return
        log.info("full_enqueue", controller=self._controller.name)
        covered, self._changed = self._changed, set()
        try:
            await self._full.run()
            # All but the breaks: store and durable are those of the last time.
            if held is None or held.rpartition(b" ")[0] != token.encode().rpartition(b" ")[0]:
                # What the queue lost, or what came before this durable, may be deletions that no
                # list tells of: a swept object leaves no tombstone.
                await self._replay_deletions()
            await self._links.redis.set(key, token)
        except BaseException:
            self._changed |= covered
            raise

    async def _replay_deletions(self) -> None:
        name = self._controller.name
        async with claimed(self._links.redis, name) as is_ours:
            if not is_ours:
                raise PrimedElsewhere("another process of this controller reads the stream again")
            await replay_deletions(self._links.bus, name, self._filters, self._enqueue_again)

    async def _enqueue_for_new_code(self) -> None:
        """What other code has reconciled is not proved for this one; asked once per process.

        While two releases run at a time, each process that starts with another code than the last
        one enqueues once.
        """
        if self._is_code_known:
            return
        key = queue_key(self._controller.name, "code")
        code = fingerprint(self._controller)
        held = cast("bytes | None", await self._links.redis.get(key))
        if held != code.encode():
            if held is not None:
                log.info("code_changed", controller=self._controller.name)
                await self._full.run(how=How.ANEW)
            await self._links.redis.set(key, code)
        self._is_code_known = True

    async def _warn_of_unwatched(self) -> None:
        """Say once which resources and clusters of our watches are nowhere to be found."""
        if self._has_warned:
            return
        known: set[str] = set()
        for cluster in await self._links.reader.clusters():
            known |= {record.key for record in await self._links.reader.resources(cluster.name)}
        if not known or not self._links.clusters.is_known:
            return  # no watcher has spoken yet, or no provider: look again
        self._has_warned = True
        name, fleet = self._controller.name, self._links.clusters.all()
        for resource in unwatched_resources(self._controller, known):
            log.warning(
                "resource_is_watched_in_no_cluster",
                controller=name,
                resource=str(resource),
                watched=sorted(known),
            )
        for clusters in absent_clusters(self._controller, fleet):
            log.warning(
                "watch_matches_no_cluster",
                controller=name,
                clusters=clusters,
                fleet=[info.name for info in fleet],
            )

    async def _enqueue_again(self, deliveries: Sequence[Delivery]) -> None:
        events = [d.message for d in deliveries if isinstance(d.message, Event)]
        await self._intake.take(events, how=How.GAP)

    async def _token(self, durable: str) -> str:
        """What the last full enqueue must have been for; empty while it cannot be known."""
        info = await consumer_info(self._links.bus, durable)
        generation = await self._links.reader.generation()
        if info is None or generation is None:
            return ""
        # What left the stream unread is enqueued from the snapshot (rule B17), and so is everything
        # if a beacon had to begin anew (rule P11).
        answer = await self._links.redis.hmget(beacon(durable), ["low", "born", "breaks"])
        low, born, breaks = cast("list[bytes | None]", answer)
        if low is None:
            return ""
        parts = (generation, durable, info["created"], ",".join(self._filters))
        return " ".join([*parts, (born or b"-").decode(), str(int(breaks or 0))])

    def _note_change(self) -> None:
        now = {info.name: info for info in self._links.clusters.all()}
        self._changed |= {name for name, info in now.items() if self._seen.get(name) != info}
        for name in self._seen.keys() - now.keys():
            self._changed.discard(name)
            self._debts.forgive(name)
            metrics.drop_cluster_metrics(self._controller.name, name)
            self._tidy_at = 0.0
        self._seen = now
        self._queue.weigh(self._weights.read(now.values()))
        self._look.set()
