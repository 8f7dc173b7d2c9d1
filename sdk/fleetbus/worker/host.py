"""Hosts controllers in a process: bus → snapshot → queue → workers.

For each controller: register its watch set, bind the durable that the projector creates, and only
then enqueue what the snapshot already has. The other way round a change between the two steps would
be lost (rule P12).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.bus.buffer import Delivery, FairBuffer
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import RESERVED_NAMES
from fleetbus.bus.durables import BoundDurable, filters_for
from fleetbus.bus.rejected import RejectedMessages
from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.errors import ConfigError
from fleetbus.intake.binding import Binding
from fleetbus.intake.fleet_follow import background_loops
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.recent_events import RecentEvents
from fleetbus.intake.record import Record
from fleetbus.intake.recorded_queue import RecordedRedisQueue
from fleetbus.intake.routing import Router
from fleetbus.process import metrics
from fleetbus.process.health import Health
from fleetbus.snapshot.applied import AppliedEvents
from fleetbus.snapshot.offsets.by_shard import ByShard
from fleetbus.snapshot.offsets.checkpoint import OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside
from fleetbus.snapshot.offsets.snapshot_settled import SnapshotSettled
from fleetbus.worker import tracing
from fleetbus.worker.connections import Connections
from fleetbus.worker.initial_sync import CHECK_EVERY, InitialSync, PendingResyncs
from fleetbus.worker.loop_guard import contain_exits, report_blocked_loop
from fleetbus.worker.unsynced import UnsyncedResources
from fleetbus.worker.worker import Worker
from fleetbus.workqueue.heartbeat import Heartbeat, connect_blocking
from fleetbus.workqueue.queue import QueuePolicy
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM

log = structlog.get_logger()

_FLEET_WITHIN: Final = timedelta(seconds=5)
_TURN_WITHIN: Final = timedelta(seconds=60)
WEIGHT_LABEL: Final = "fleetbus.dev/queue-weight"
"""The label of a cluster that gets more turns in every queue than others (rule Q9)."""
_HIGHEST_WEIGHT: Final = 100
_NUMBER: Final = re.compile(r"[1-9]\d{0,2}")


def check_controllers(controllers: Sequence[Controller]) -> None:
    """Check that controllers are complete and their names differ.

    Raises:
        ConfigError: one is not.
    """
    by_name: dict[str, Controller] = {}
    for controller in controllers:
        name, place = controller.name, controller.place
        if name in RESERVED_NAMES:
            raise ConfigError(f"the controller name {name!r} is reserved, see {place}")
        if other := by_name.get(name):
            raise ConfigError(f"two controllers are named {name}: {other.place} and {place}")
        by_name[name] = controller
        controller.function()


async def run_controllers(
    controllers: Sequence[Controller],
    connections: Connections,
    health: Health,
    *,
    policy: QueuePolicy | None = None,
) -> None:
    """Run controllers until cancelled.

    Raises:
        ConfigError: a controller is incomplete.
        BaseExceptionGroup: NATS refuses us for good (rule B13), or a loop failed.
    """
    check_controllers(controllers)
    async with report_blocked_loop(), contain_exits(), asyncio.TaskGroup() as group:
        group.create_task(connections.bus.failure(), name="bus failure")
        for controller in controllers:
            hosted = _Hosted(controller, connections, health, policy or QueuePolicy())
            group.create_task(hosted.run(), name=f"controller {controller.name}")


class _Hosted:
    """One controller in this process, with everything that only it uses."""

    def __init__(
        self, controller: Controller, connections: Connections, health: Health, policy: QueuePolicy
    ) -> None:
        name = controller.name
        self._controller = controller
        self._connections = connections
        self._policy = policy.with_backoff(controller.backoff)
        self._durable = BoundDurable(filters_for(watch.resource for watch in controller.watches))
        self._queue = RedisQueue(connections.redis, name, policy=self._policy)
        self._record = Record(connections.redis, controller)
        self._recorded = RecordedRedisQueue(self._queue, self._record)
        self._recent = RecentEvents(controller.own_resource)
        reader = connections.reader
        self._unsynced = UnsyncedResources(controller, redis=connections.redis, reader=reader)
        self._applied = AppliedEvents(writer=connections.writer, reader=reader)
        resyncs = PendingResyncs()
        self._router = Router(
            controller,
            clusters=connections.clusters,
            fleet=connections.fleet,
            schedule_resync=resyncs.add,
        )
        self._intake = Intake(
            self._router, queue=self._recorded, record=self._record, reader=reader
        )
        self._initial_sync = self._make_initial_sync(resyncs)
        self._by_shard = ByShard(connections.keys, self._handle, probe=reader.probe)
        self._checkpoint = self._make_checkpoint()
        self._consumer_turn = health.liveness(f"consumer {name}", _TURN_WITHIN)
        self._worker_turn = health.liveness(f"worker {name}", _TURN_WITHIN)
        self._weights = QueueWeights()
        self._rejected = RejectedMessages(name, connections.fleet.has)
        self._with_series: set[str] = set()
        """Clusters whose metrics exist: to look all of them up takes longer than most events."""
        self._is_fleet_awaited = False
        metrics.create_controller_metrics(name)
        health.ready_when(
            f"controller {name}",
            lambda: "" if self._initial_sync.is_synced else "not bound to the bus yet",
        )

    def _make_initial_sync(self, resyncs: PendingResyncs) -> InitialSync:
        full = FullEnqueue(
            self._controller,
            router=self._router,
            intake=self._intake,
            record=self._record,
            reader=self._connections.reader,
        )
        return InitialSync(
            self._controller,
            self._connections,
            durable=self._durable,
            intake=self._intake,
            full=full,
            unsynced=self._unsynced,
            resyncs=resyncs,
        )

    def _make_checkpoint(self) -> OffsetCheckpoint:
        redis, keys = self._connections.redis, self._connections.keys
        return OffsetCheckpoint(
            bus=self._connections.bus,
            redis=redis,
            keys=keys,
            beside=Beside.queue(self._controller.name),
            consumer=self._controller.name,
            durable=self._durable,
            handle=self._by_shard.handle,
            on_return=self._initial_sync.enqueue_recent,
            is_rest_settled=SnapshotSettled(redis, keys).check,
        )

    def _make_worker(self) -> Worker:
        access, name = self._connections.settings.store, self._controller.name
        return Worker(
            controller=self._controller,
            queue=self._queue,
            make_heartbeat=lambda on_lost: Heartbeat(
                connect_blocking(access, self._policy), name, policy=self._policy, on_lost=on_lost
            ),
            fleet=self._connections.fleet,
            record=self._record,
            unsynced=self._unsynced,
            recorded=self._recorded,
            recent=self._recent,
            before_take=self._wait_for_store,
            on_turn=self._worker_turn,
        )

    async def run(self) -> None:
        self._connections.clusters.on_change(self._note_fleet)
        self._note_fleet()
        name, fleet = self._controller.name, self._connections.fleet
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._checkpoint.run(), name=f"checkpoint {name}")
                group.create_task(self._consume(), name=f"consume {name}")
                group.create_task(self._make_worker().run(), name=f"work {name}")
                group.create_task(self._initial_sync.run(), name=f"initial sync {name}")
                for loop in background_loops(self._controller, self._queue, fleet):
                    group.create_task(loop, name=f"loop of {name}")
        finally:
            await self._by_shard.aclose()
            await self._queue.aclose()

    async def _consume(self) -> None:
        """Consume from the durable that is ours, whichever that is at the time (rule B12)."""
        binding = Binding(
            self._connections.bus,
            self._connections.kv,
            controller=self._controller.name,
            filters=self._durable.filters,
            beat=self._consumer_turn,
        )
        while True:
            durable = await binding.bind()
            self._durable.bind(durable)
            consumer = self._make_consumer(durable)
            async with asyncio.TaskGroup() as group:
                consuming = group.create_task(consumer.run(), name=f"pull {durable}")
                await binding.lost(durable)
                self._durable.bind("")
                consuming.cancel()

    def _make_consumer(self, durable: str) -> Consumer:
        buffer = FairBuffer(
            metrics.SUPERSEDED.labels(self._controller.name).inc,
            is_skippable=self._router.is_skippable,
        )
        return Consumer(
            self._connections.bus,
            stream=STREAM,
            durable=durable,
            handle=self._by_shard.handle,
            buffer=buffer,
            on_turn=self._consumer_turn,
        )

    async def _wait_for_store(self) -> None:
        """Wait while the store is empty, or has lost writes of ours (rules P11, P13).

        At the start also for the fleet, for a while: a run would find no cluster engaged.
        """
        while not await self._checkpoint.settled(CHECK_EVERY):
            self._worker_turn()
        if not self._is_fleet_awaited:
            self._is_fleet_awaited = True
            with suppress(TimeoutError):  # a provider that is away may not hold up other clusters
                async with asyncio.timeout(_FLEET_WITHIN.total_seconds()):
                    await self._connections.clusters.known()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        """Enqueue what is applied; the consumer acknowledges when this returns (rule P9)."""
        name = self._controller.name
        pairs = [(d.message, d.headers) for d in deliveries if isinstance(d.message, Event)]
        events = [event for event, _ in pairs]
        traces = [headers.get(tracing.HEADER, "") for _, headers in pairs]
        consumed = tracing.Consumed(name, events, traces)
        # Nothing is refused for a cluster that this process does not know yet: the worker retries
        # a request whose cluster is not engaged, and ends one whose cluster has left.
        with consumed.enqueuing() as carried:
            await self._intake.take(events, traces=carried, after=self._ensure_applied(events))
        metrics.EVENTS_CONSUMED.labels(name).inc(len(deliveries))
        for delivery in deliveries:
            if delivery.message is None:
                self._rejected.record(delivery)
        self._create_series({event.cluster for event in events})

    async def _ensure_applied(self, events: Sequence[Event]) -> None:
        # An event may come again when its object has changed since, or is gone: no run may read it.
        self._recent.note(await self._applied.ensure(events))

    def _create_series(self, clusters: AbstractSet[str]) -> None:
        """Create the metrics of clusters of the fleet that have none yet."""
        for cluster in filter(self._connections.fleet.has, clusters - self._with_series):
            metrics.create_cluster_metrics(self._controller.name, cluster)
            self._with_series.add(cluster)

    def _note_fleet(self) -> None:
        now = {info.name: info for info in self._connections.clusters.all()}
        self._queue.weigh(self._weights.read(now.values()))
        for name in self._initial_sync.note_fleet(now):
            metrics.drop_cluster_metrics(self._controller.name, name)
            self._with_series.discard(name)
            self._rejected.forget_cluster(name)


class QueueWeights:
    """Reads `WEIGHT_LABEL`; logs each value that is no weight once."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def read(self, clusters: Iterable[ClusterInfo]) -> dict[str, float]:
        """The weights that differ from 1, by cluster."""
        weights: dict[str, float] = {}
        for info in clusters:
            text = info.labels.get(WEIGHT_LABEL)
            if text is None:
                continue
            if not _NUMBER.fullmatch(text) or int(text) > _HIGHEST_WEIGHT:
                self._warn(info.name, text)
            elif text != "1":
                weights[info.name] = int(text)
        return weights

    def _warn(self, cluster: str, text: str) -> None:
        if (cluster, text) not in self._warned:
            self._warned.add((cluster, text))
            log.warning("queue_weight_unusable", cluster=cluster, value=text, expected="1 to 100")
