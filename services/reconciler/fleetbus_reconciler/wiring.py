"""Builds the projector from its parts, and runs their loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final

from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery, FairBuffer
from fleetbus.bus.consume import Consumer, PartlyHandled
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.jetstream import StreamLimits
from fleetbus.bus.reader_groups import BoundDurable
from fleetbus.bus.window import Window, open_window
from fleetbus.clusters.providers.build import hub_config
from fleetbus.errors import BusError, StoreError
from fleetbus.process import metrics
from fleetbus.process.health import Health
from fleetbus.process.settings import load_settings
from fleetbus.process.waiting import wait_until_usable
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.snapshot.audit import Audits
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.by_shard import ByShard, split_by_shard
from fleetbus.snapshot.offsets.checkpoint import OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside
from fleetbus.snapshot.prior_states import PriorStates
from fleetbus.watchers.message_key import message_key
from fleetbus.worker.connections import Connections
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from fleetbus_reconciler.agents.registrar import Registrar
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.fleet_status.access_consent import AccessConsents
from fleetbus_reconciler.fleet_status.agent_checks import AgentChecks
from fleetbus_reconciler.fleet_status.cluster_status import ClusterStatus
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.fleet_status.token_renewal import TokenRenewal
from fleetbus_reconciler.fleet_status.watch_specs import WatchSpecWriter
from fleetbus_reconciler.list_grants.granter import Granter
from fleetbus_reconciler.projector.audit_evaluator import AuditEvaluator
from fleetbus_reconciler.projector.bus_resources import BusResources
from fleetbus_reconciler.projector.clock_skew import ClockSkew
from fleetbus_reconciler.projector.held_buffer import HeldBuffer, skip_nothing
from fleetbus_reconciler.projector.loss_recovery import LossRecovery, update_stream_metrics
from fleetbus_reconciler.projector.prior_states import PriorStatePublisher
from fleetbus_reconciler.projector.projector import Projector
from fleetbus_reconciler.projector.sweeper import Sweeper, SweepFuse
from fleetbus_reconciler.projector.tombstones import TombstoneCollector
from fleetbus_reconciler.projector.unwatched_scopes import UnwatchedScopes
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import USUAL, ReconcilerTiming

_CLUSTER: Final = "cluster"
_TURN_WITHIN: Final = timedelta(seconds=60)


async def run_projector(
    connections: Connections,
    settings: ReconcilerSettings,
    health: Health,
    timing: ReconcilerTiming = USUAL,
    *,
    applied: AppliedHere | None = None,
) -> None:
    """Run the projector until cancelled.

    Args:
        connections: of the process.
        settings: of the projector.
        health: where it reports whether it runs.
        timing: the times that no setting changes.
        applied: writes events for it and for the controllers of this process, if it has any.

    Raises:
        BusError: NATS forbids a subject (rule B13), or its configuration has drifted meanwhile.
        BaseExceptionGroup: a loop failed.
    """
    is_bound = asyncio.Event()
    health.ready_when("projector", lambda: "" if is_bound.is_set() else "not bound to the bus yet")
    metrics.EVENTS_CONSUMED.labels(PROJECTOR)
    async with open_window(connections.bus) as window, asyncio.TaskGroup() as group:
        group.create_task(connections.bus.failure(), name="bus failure")
        parts = _Parts(connections, settings, timing, window, applied)
        if applied is not None:
            applied.on_completed(parts.sweeper.add)
        await _set_up(parts, health)
        turn = health.liveness("projector", _TURN_WITHIN)
        is_bound.set()
        for name, loop in _loops(parts, turn).items():
            group.create_task(loop, name=name)


async def run_beside_controllers(
    connections: Connections, health: Health, applied: AppliedHere | None
) -> None:
    """Run the projector in a process of somebody else's controllers, until cancelled.

    Args:
        connections: of the process.
        health: where it reports whether it runs.
        applied: writes events, also for the controllers; None if these write for themselves.

    Raises:
        ConfigError: a variable FLEETBUS_RECONCILER_… has no value that it may have.
        BusError: as `run_projector`.
        BaseExceptionGroup: as `run_projector`.
    """
    settings = load_settings(ReconcilerSettings)
    await run_projector(connections, settings, health, applied=applied)


async def _set_up(parts: _Parts, health: Health) -> None:
    """Create what is missing on the bus and in the store; wait while either cannot be used."""
    await wait_until_usable("stream", parts.resources.ensure, health=health, failures=BusError)

    async def fill_store() -> None:
        await parts.writer.ensure_generation()
        await parts.projector.converge()

    failures = (StoreError, RedisError)
    await wait_until_usable("snapshot", fill_store, health=health, failures=failures)


def _loops(parts: _Parts, turn: Callable[[], None]) -> dict[str, Coroutine[Any, Any, None]]:
    return {
        "consume projector": _consume(parts, turn),
        "sweep": parts.sweeper.run(),
        "grants": parts.granter.run(),
        "audits": parts.audits.run(),
        "clock skew": parts.clocks.run(),
        "tombstones": parts.tombstones.run(),
        "prior states": parts.prior_states.run(),
        "follow fleet": parts.projector.follow_fleet(),
        "follow epochs": parts.projector.follow_epochs(),
        "watch store": parts.projector.watch_store(),
        "cluster status": parts.status.run(),
        "agent checks": parts.agents.run(),
        **({"member tokens": parts.tokens.run()} if parts.has_cluster_objects else {}),
        **({"registrar": parts.registrar.run()} if parts.settings.agents_secret else {}),
        "access consents": parts.consents.run(),
        "watch specs": parts.specs.run(),
        "unwatched scopes": parts.unwatched.run(),
        **{
            f"checkpoint of shard {shard}": checkpoint.run()
            for shard, checkpoint in enumerate(parts.checkpoints)
        },
        "registrations": parts.resources.serve_registrations(),
        "bus resources": parts.resources.run(),
    }


async def _consume(parts: _Parts, turn: Callable[[], None]) -> None:
    """Consume the stream: of each shard once it is known up to where the shard has it (P11)."""
    is_open = [False] * parts.keys.shards

    def open_shard(shard: int) -> bool:
        is_open[shard] = is_open[shard] or parts.checkpoints[shard].is_settled
        return is_open[shard]

    by_shard = ByShard(
        parts.keys,
        parts.projector.handle,
        probe=parts.reader.probe,
        is_open=open_shard,
    )

    def note(deliveries: Sequence[Delivery], failed: AbstractSet[int] = frozenset()) -> None:
        handled = [each.sequence for each in deliveries if each.sequence not in failed]
        for checkpoint in parts.checkpoints:
            checkpoint.note(handled)

    async def handle(deliveries: Sequence[Delivery]) -> None:
        try:
            await by_shard.handle(deliveries)
        except PartlyHandled as e:
            note(deliveries, e.failed)
            raise
        note(deliveries)

    applied = parts.applied
    if applied is None:
        buffer = FairBuffer(is_skippable=skip_nothing, concurrency=1)
    else:
        buffer = HeldBuffer(applied.is_ensured)
    consumer = Consumer(
        parts.bus,
        stream=STREAM,
        durable=PROJECTOR,
        handle=handle,
        buffer=buffer,
        on_turn=turn,
    )
    while not any(map(open_shard, range(parts.keys.shards))):
        await parts.checkpoints[0].settled(parts.timing.retry)
        turn()
    try:
        await consumer.run()
    finally:
        await by_shard.aclose()


class _Parts:
    """The collaborators of one projector, each made when it is first needed."""

    def __init__(
        self,
        connections: Connections,
        settings: ReconcilerSettings,
        timing: ReconcilerTiming,
        window: Window,
        applied: AppliedHere | None,
    ) -> None:
        self.bus = connections.bus
        self.kv = connections.kv
        self.redis = connections.redis
        self.keys = connections.keys
        self.reader = connections.reader
        self.writer = connections.writer
        self.clusters = connections.clusters
        self.shared = connections.settings
        self.settings = settings
        self.timing = timing
        self.window = window
        self.applied = applied

    @cached_property
    def resyncs(self) -> ResyncRequests:
        return ResyncRequests(
            clusters=self.clusters,
            reader=self.reader,
            bus=self.bus,
            kv=self.kv,
            repeat_after=self.timing.resync_repeated,
        )

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
            retry=self.timing.retry,
        )

    @cached_property
    def prior_states(self) -> PriorStatePublisher:
        states = PriorStates(self.redis, self.keys)
        return PriorStatePublisher(bus=self.bus, states=states, shards=self.keys.shards)

    @cached_property
    def granter(self) -> Granter:
        return Granter(
            bus=self.bus,
            kv=self.kv,
            reader=self.reader,
            settings=self.settings,
            timing=self.timing,
        )

    @cached_property
    def audits(self) -> AuditEvaluator:
        return AuditEvaluator(
            audits=Audits(self.redis, self.keys),
            state=self.state,
            resyncs=self.resyncs,
            tombstones=self.tombstones,
            wait=self.settings.audit_wait,
        )

    @cached_property
    def clocks(self) -> ClockSkew:
        return ClockSkew(
            bus=self.bus,
            writer=self.writer,
            resyncs=self.resyncs,
            interval=self.timing.clock_checks,
        )

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
            keys=self.keys,
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
            applied=self.applied,
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
            timing=self.timing,
        )

    @cached_property
    def checkpoints(self) -> Sequence[OffsetCheckpoint]:
        """One for each shard: a checkpoint vouches for the content of one server."""
        return [self._checkpoint_of(shard) for shard in range(self.keys.shards)]

    @cached_property
    def bus_states(self) -> BusStates:
        return BusStates(self.bus, on_stream_state=update_stream_metrics)

    def _checkpoint_of(self, shard: int) -> OffsetCheckpoint:
        return OffsetCheckpoint(
            bus=self.bus,
            states=self.bus_states,
            redis=self.redis,
            keys=self.keys,
            beside=Beside.shard_of_snapshot(self.keys, shard, PROJECTOR),
            consumer=PROJECTOR,
            durable=BoundDurable(PROJECTOR),
            filters=STREAM_SUBJECTS,
            handle=partial(self._handle_of, shard),
            on_loss=partial(self.recovery.recover, shard),
            on_return=partial(self.recovery.request_audits, shard),
        )

    async def _handle_of(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        """Handle the messages about the clusters of one shard, which has lost writes."""
        await self.projector.handle_again(split_by_shard(self.keys, deliveries).get(shard, []))

    @cached_property
    def status(self) -> ClusterStatus:
        return ClusterStatus(
            clusters=self.clusters,
            reader=self.reader,
            stale_after=self.settings.silent_after,
            namespace=self.settings.namespace,
            interval=self.timing.cluster_status,
        )

    @cached_property
    def agents(self) -> AgentChecks:
        return AgentChecks(
            clusters=self.clusters,
            reader=self.reader,
            writer=self.writer,
            interval=self.timing.agent_checks,
        )

    @property
    def has_cluster_objects(self) -> bool:
        """Whether clusters come from Cluster objects, which `fleetbus join` writes."""
        return any(provider.type == _CLUSTER for provider in self.shared.providers)

    @cached_property
    def tokens(self) -> TokenRenewal:
        return TokenRenewal(
            hub=hub_config(self.shared),
            clusters=self.clusters,
            namespace=self.settings.namespace,
            watcher_secrets=self.settings.watcher_secrets,
        )

    @cached_property
    def registrar(self) -> Registrar:
        return Registrar(
            hub=hub_config(self.shared),
            bus=self.bus,
            clusters=self.clusters,
            namespace=self.settings.namespace,
            accounts=self.settings.agents_secret,
            approval=self.settings.agents_approval,
        )

    @cached_property
    def consents(self) -> AccessConsents:
        return AccessConsents(
            clusters=self.clusters,
            bus=self.bus,
            kv=self.kv,
            accepted=self.accepted,
            retry=self.timing.consent_retry,
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
            shards=self.keys.shards,
            subscribers=settings.subscribers,
            archiver=settings.archiver,
            resyncs=self.resyncs,
            read_again=(self.granter.read_again, self.consents.read_again),
            timing=self.timing,
        )
