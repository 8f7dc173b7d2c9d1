"""Builds the projector from its parts, and runs their loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durables import PROJECTOR, BoundDurable
from fleetbus.bus.jetstream import StreamLimits
from fleetbus.bus.window import Window, open_window
from fleetbus.process import metrics
from fleetbus.process.health import Health
from fleetbus.snapshot.audit import Audits
from fleetbus.snapshot.offsets.checkpoint import OffsetCheckpoint
from fleetbus.watchers.message_key import message_key
from fleetbus.worker.connections import Connections
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.fleet_status.access_consent import AccessConsents
from fleetbus_reconciler.fleet_status.cluster_status import ClusterStatus
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.fleet_status.watch_specs import WatchSpecWriter
from fleetbus_reconciler.list_grants.granter import Granter
from fleetbus_reconciler.projector.audit_evaluator import AuditEvaluator
from fleetbus_reconciler.projector.bus_resources import BusResources
from fleetbus_reconciler.projector.clock_skew import ClockSkew
from fleetbus_reconciler.projector.loss_recovery import LossRecovery, update_stream_metrics
from fleetbus_reconciler.projector.projector import Projector
from fleetbus_reconciler.projector.sweeper import Sweeper, SweepFuse
from fleetbus_reconciler.projector.tombstones import TombstoneCollector
from fleetbus_reconciler.projector.unwatched_scopes import UnwatchedScopes
from fleetbus_reconciler.settings import ReconcilerSettings

_RETRY: Final = timedelta(seconds=1)
_TURN_WITHIN: Final = timedelta(seconds=60)


async def run_projector(
    connections: Connections, settings: ReconcilerSettings, health: Health
) -> None:
    """Run the projector until cancelled.

    Raises:
        BusError: NATS refuses us, or its configuration has drifted.
        BaseExceptionGroup: a loop failed.
    """
    is_bound = asyncio.Event()
    health.ready_when("projector", lambda: "" if is_bound.is_set() else "not bound to the bus yet")
    metrics.EVENTS_CONSUMED.labels(PROJECTOR)
    async with open_window(connections.bus) as window:
        parts = _Parts(connections, settings, window)
        await parts.resources.ensure()
        await connections.writer.ensure_generation()
        turn = health.liveness("projector", _TURN_WITHIN)
        await parts.projector.converge()
        is_bound.set()
        async with asyncio.TaskGroup() as group:
            for name, loop in _loops(parts, turn).items():
                group.create_task(loop, name=name)


def _loops(parts: _Parts, turn: Callable[[], None]) -> dict[str, Coroutine[Any, Any, None]]:
    return {
        "bus failure": parts.bus.failure(),
        "consume projector": _consume(parts, turn),
        "sweep": parts.sweeper.run(),
        "grants": parts.granter.run(),
        "audits": parts.audits.run(),
        "clock skew": parts.clocks.run(),
        "tombstones": parts.tombstones.run(),
        "follow fleet": parts.projector.follow_fleet(),
        "follow epochs": parts.projector.follow_epochs(),
        "watch store": parts.projector.watch_store(),
        "cluster status": parts.status.run(),
        "access consents": parts.consents.run(),
        "watch specs": parts.specs.run(),
        "unwatched scopes": parts.unwatched.run(),
        "checkpoint": parts.checkpoint.run(),
        "registrations": parts.resources.serve_registrations(),
        "bus resources": parts.resources.run(),
    }


async def _consume(parts: _Parts, turn: Callable[[], None]) -> None:
    """Start with the stream when it is known up to where the store has it (rule P11)."""

    async def handle(deliveries: Sequence[Delivery]) -> None:
        await parts.projector.handle(deliveries)
        parts.checkpoint.note([delivery.sequence for delivery in deliveries])

    consumer = Consumer(parts.bus.nc, stream=STREAM, durable=PROJECTOR, handle=handle, on_turn=turn)
    while not await parts.checkpoint.settled(_RETRY):
        turn()
    await consumer.run()


class _Parts:
    """The collaborators of one projector, each made when it is first needed."""

    def __init__(
        self, connections: Connections, settings: ReconcilerSettings, window: Window
    ) -> None:
        self.bus = connections.bus
        self.kv = connections.kv
        self.redis = connections.redis
        self.reader = connections.reader
        self.writer = connections.writer
        self.clusters = connections.clusters
        self.settings = settings
        self.window = window

    @cached_property
    def resyncs(self) -> ResyncRequests:
        return ResyncRequests(clusters=self.clusters, reader=self.reader, bus=self.bus, kv=self.kv)

    @cached_property
    def state(self) -> FleetState:
        return FleetState(
            clusters=self.clusters, reader=self.reader, writer=self.writer, resyncs=self.resyncs
        )

    @cached_property
    def accepted(self) -> AcceptedUids:
        return AcceptedUids(bus=self.bus, kv=self.kv, reader=self.reader, writer=self.writer)

    @cached_property
    def tombstones(self) -> TombstoneCollector:
        return TombstoneCollector(
            reader=self.reader, writer=self.writer, kept=self.settings.last_state_kept
        )

    @cached_property
    def sweeper(self) -> Sweeper:
        settings = self.settings
        return Sweeper(
            reader=self.reader,
            writer=self.writer,
            window=self.window,
            max_payload=lambda: self.bus.max_payload,
            message_key=partial(message_key, self.kv),
            state=self.state,
            resyncs=self.resyncs,
            tombstones=self.tombstones,
            fuse=SweepFuse(settings.fuse_objects, settings.fuse_percent, settings.fuse_wait),
        )

    @cached_property
    def granter(self) -> Granter:
        return Granter(bus=self.bus, kv=self.kv, reader=self.reader, settings=self.settings)

    @cached_property
    def audits(self) -> AuditEvaluator:
        return AuditEvaluator(
            audits=Audits(self.redis),
            state=self.state,
            resyncs=self.resyncs,
            tombstones=self.tombstones,
            wait=self.settings.audit_wait,
        )

    @cached_property
    def clocks(self) -> ClockSkew:
        return ClockSkew(bus=self.bus, writer=self.writer, resyncs=self.resyncs)

    @cached_property
    def unwatched(self) -> UnwatchedScopes:
        return UnwatchedScopes(
            bus=self.bus,
            reader=self.reader,
            writer=self.writer,
            state=self.state,
            sweeper=self.sweeper,
            after=self.settings.unwatched_after,
        )

    @cached_property
    def recovery(self) -> LossRecovery:
        return LossRecovery(
            clusters=self.clusters,
            bus=self.bus,
            kv=self.kv,
            state=self.state,
            resyncs=self.resyncs,
            accepted=self.accepted,
        )

    @cached_property
    def projector(self) -> Projector:
        return Projector(
            reader=self.reader,
            writer=self.writer,
            clusters=self.clusters,
            state=self.state,
            resyncs=self.resyncs,
            accepted=self.accepted,
            sweeper=self.sweeper,
            granter=self.granter,
            audits=self.audits,
            clocks=self.clocks,
            unwatched=self.unwatched,
            recovery=self.recovery,
            settings=self.settings,
        )

    @cached_property
    def checkpoint(self) -> OffsetCheckpoint:
        return OffsetCheckpoint(
            bus=self.bus,
            redis=self.redis,
            consumer=PROJECTOR,
            durable=BoundDurable(STREAM_SUBJECTS, PROJECTOR),
            handle=self.projector.handle,
            on_loss=self.recovery.recover,
            on_return=self.recovery.request_audits,
            on_stream_state=update_stream_metrics,
        )

    @cached_property
    def status(self) -> ClusterStatus:
        return ClusterStatus(
            clusters=self.clusters, reader=self.reader, stale_after=self.settings.silent_after
        )

    @cached_property
    def consents(self) -> AccessConsents:
        return AccessConsents(
            clusters=self.clusters, bus=self.bus, kv=self.kv, accepted=self.accepted
        )

    @cached_property
    def specs(self) -> WatchSpecWriter:
        return WatchSpecWriter(clusters=self.clusters, bus=self.bus, kv=self.kv)

    @cached_property
    def resources(self) -> BusResources:
        settings = self.settings
        return BusResources(
            bus=self.bus,
            kv=self.kv,
            limits=StreamLimits(
                max_bytes=settings.stream_max_bytes,
                bucket_bytes=settings.bucket_max_bytes,
                replicas=settings.bus_replicas,
            ),
            resyncs=self.resyncs,
            read_again=(self.granter.read_again, self.consents.read_again),
        )
