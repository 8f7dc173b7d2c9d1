"""One controller in a process, with everything that only it uses.

Its watch set is registered and bound by the reader of the process; only then it enqueues what the
snapshot already has. The other way round a change between the two steps would be lost (rule P12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.reader_groups import BoundDurable, ReaderGroup
from fleetbus.bus.rejected import RejectedMessages
from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import PartialMetadata
from fleetbus.intake.controller_store import RedisStore
from fleetbus.intake.fleet_follow import background_loops
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake, ref_of
from fleetbus.intake.record import Records
from fleetbus.intake.routing import Router
from fleetbus.process import metrics
from fleetbus.process.health import Health
from fleetbus.snapshot.applied import AppliedEvents
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.by_shard import ByShard
from fleetbus.snapshot.offsets.checkpoint import OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside
from fleetbus.snapshot.offsets.snapshot_settled import SnapshotSettled
from fleetbus.worker import tracing
from fleetbus.worker.connections import Connections
from fleetbus.worker.initial_sync import CHECK_EVERY, InitialSync, PendingResyncs
from fleetbus.worker.queue_weights import QueueWeights
from fleetbus.worker.worker import Worker
from fleetbus.workqueue.heartbeat import Heartbeat, connect_blocking
from fleetbus.workqueue.queue import QueuePolicy
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_proto.events import Event

log = structlog.get_logger()

_FLEET_WITHIN: Final = timedelta(seconds=5)
_TURN_WITHIN: Final = timedelta(seconds=60)


ReadMetadata = Callable[[Delivery], PartialMetadata | None]


class Hosted:
    """One controller in this process.

    Args:
        controller: which one.
        connections: bus, store and fleet.
        health: shows whether it is bound, and works.
        policy: of its queue.
        group: the controllers of this process.
        durable: the one that this process is bound to.
        states: of the stream and the durable.
    """

    def __init__(
        self,
        controller: Controller,
        connections: Connections,
        health: Health,
        policy: QueuePolicy,
        *,
        group: ReaderGroup,
        durable: BoundDurable,
        states: BusStates,
    ) -> None:
        self.name = name = controller.name
        self.controller = controller
        self._connections = connections
        policy = policy.with_backoff(controller.backoff)
        self._queue = RedisQueue(connections.redis, name, policy=policy)
        reader = connections.reader
        self.store = RedisStore(
            controller,
            self._queue,
            redis=connections.redis,
            reader=reader,
            make_heartbeat=lambda on_lost: Heartbeat(
                connect_blocking(connections.settings.store, policy),
                name,
                policy=policy,
                on_lost=on_lost,
            ),
        )
        self.record = self.store.record
        self._applied = AppliedEvents(writer=connections.writer, reader=reader)
        resyncs = PendingResyncs()
        self.router = Router(
            controller,
            clusters=connections.clusters,
            fleet=connections.fleet,
            schedule_resync=resyncs.add,
        )
        self._intake = Intake(self.router, store=self.store, reader=reader)
        full = FullEnqueue(
            controller,
            router=self.router,
            intake=self._intake,
            record=self.record,
            reader=reader,
        )
        self._initial_sync = InitialSync(
            controller,
            connections,
            group=group,
            durable=durable,
            states=states,
            intake=self._intake,
            full=full,
            unsynced=self.store.unsynced,
            resyncs=resyncs,
        )
        self._replayed = ByShard(connections.keys, self._take_again, probe=reader.probe)
        self._checkpoint = OffsetCheckpoint(
            bus=connections.bus,
            states=states,
            redis=connections.redis,
            keys=connections.keys,
            beside=Beside.queue(name),
            consumer=name,
            durable=durable,
            filters=group.controllers[name].filters,
            handle=self._replayed.handle,
            on_return=self._initial_sync.enqueue_recent,
            is_rest_settled=SnapshotSettled(connections.redis, connections.keys).check,
        )
        self._worker_turn = health.liveness(f"worker {name}", _TURN_WITHIN)
        self._weights = QueueWeights()
        self._rejected = RejectedMessages(name, connections.fleet.has)
        self._with_series: set[str] = set()
        """Clusters whose metrics exist: to look all of them up takes longer than most events."""
        self._is_fleet_awaited = False
        metrics.create_controller_metrics(name)
        self._consumed = metrics.EVENTS_CONSUMED.labels(name)
        self.count_superseded = metrics.SUPERSEDED.labels(name).inc
        health.ready_when(
            f"controller {name}",
            lambda: "" if self._initial_sync.is_synced else "not bound to the bus yet",
        )

    async def run(self) -> None:
        """Work until cancelled."""
        self._connections.clusters.on_change(self._note_fleet)
        self._note_fleet()
        name, fleet = self.name, self._connections.fleet
        worker = Worker(self.controller, self.store, fleet, before_take=self._wait_for_store)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._checkpoint.run(), name=f"checkpoint {name}")
                group.create_task(worker.run(), name=f"work {name}")
                group.create_task(self._initial_sync.run(), name=f"initial sync {name}")
                for loop in background_loops(self.controller, self._queue, fleet):
                    group.create_task(loop, name=f"loop of {name}")
        finally:
            await self._replayed.aclose()
            await self._queue.aclose()

    async def _wait_for_store(self) -> None:
        """Wait while the store is empty, or has lost writes of ours (rules P11, P13).

        At the start also for the fleet, for a while: a run would find no cluster engaged.
        """
        self._worker_turn()
        while not await self._checkpoint.settled(CHECK_EVERY):
            self._worker_turn()
        if not self._is_fleet_awaited:
            self._is_fleet_awaited = True
            with suppress(TimeoutError):  # a provider that is away may not hold up other clusters
                async with asyncio.timeout(_FLEET_WITHIN.total_seconds()):
                    await self._connections.clusters.known()

    async def take(
        self, deliveries: Sequence[Delivery], standing: Sequence[Event], records: Records
    ) -> None:
        """Enqueue what events wake.

        Args:
            deliveries: of events that are in the snapshot.
            standing: those that are what the snapshot had a moment ago.
            records: what was read of them already.

        Raises:
            Exception: nobody knows what was enqueued; all of it has to come again (rule P9).
        """
        # An event may come again when its object has changed since, or is gone: no run may read it.
        self.store.recent.note(standing)
        found = [(d.message, d.headers) for d in deliveries if isinstance(d.message, Event)]
        events = [event for event, _ in found]
        traces = [headers.get(tracing.HEADER, "") for _, headers in found]
        consumed = tracing.Consumed(self.name, events, traces)
        # Nothing is refused for a cluster that this process does not know yet: the worker retries
        # a request whose cluster is not engaged, and ends one whose cluster has left.
        with consumed.enqueuing() as carried:
            await self._intake.take(events, traces=carried, records=records)
        self._consumed.inc(len(events))
        self._create_series({event.cluster for event in events})

    def without_refused(
        self, part: Sequence[Delivery], records: Records, read: ReadMetadata
    ) -> Sequence[Delivery]:
        """Leave out the events of objects that are not selected, and were not before.

        Args:
            part: events that are in the snapshot.
            records: what was read of them.
            read: reads labels and annotations of each.
        """
        stored = records.get(self.record)
        if not isinstance(stored, dict):
            return part
        events = [(d, d.message) for d in part if isinstance(d.message, Event)]
        # Of one object all states count or none: the later one may have left the selection.
        counting = {
            ref
            for delivery, event in events
            if not (
                stored[ref := ref_of(event)].is_empty
                and self.router.refuses(event, partial(read, delivery))
            )
        }
        if len(counting) == len(stored):
            return part
        kept = [delivery for delivery, event in events if ref_of(event) in counting]
        self._consumed.inc(len(part) - len(kept))
        return kept

    async def skip(self, number: int) -> None:
        """Record that events go unread: all that is known is enqueued instead (rule P12).

        Raises:
            redis.exceptions.RedisError: nobody knows whether it was written; to be repeated.
        """
        log.warning("events_skipped", controller=self.name, number=number)
        await self._checkpoint.note_break()
        self._initial_sync.wake()

    async def _take_again(self, deliveries: Sequence[Delivery]) -> None:
        events = [d.message for d in deliveries if isinstance(d.message, Event)]
        await self.take(deliveries, await self._applied.ensure(events), {})

    def reject(self, delivery: Delivery) -> None:
        """Record a message that cannot be read (rule B18)."""
        self._rejected.record(delivery)

    def _create_series(self, clusters: AbstractSet[str]) -> None:
        """Create the metrics of clusters of the fleet that have none yet."""
        for cluster in filter(self._connections.fleet.has, clusters - self._with_series):
            metrics.create_cluster_metrics(self.name, cluster)
            self._with_series.add(cluster)

    def _note_fleet(self) -> None:
        now = {info.name: info for info in self._connections.clusters.all()}
        self._queue.weigh(self._weights.read(now.values()))
        for name in self._initial_sync.note_fleet(now):
            metrics.drop_cluster_metrics(self.name, name)
            self._with_series.discard(name)
            self._rejected.forget_cluster(name)
