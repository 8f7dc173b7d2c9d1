"""The projector: the built-in consumer that keeps the snapshot for all watched resources.

It creates the stream, the bucket and the durables (rule B12), applies every event, finishes
epochs, publishes the deletions that a relist found, and tells readers how fresh each answer is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

import structlog
from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durables import PROJECTOR, ensure_consumer
from fleetbus.bus.jetstream import StreamLimits, ensure_bucket, ensure_stream
from fleetbus.bus.rejected import SetAside
from fleetbus.bus.window import open_window
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.process import metrics
from fleetbus.process.health import Health
from fleetbus.snapshot.audit import Audits
from fleetbus.snapshot.offsets.checkpoint import Beacon
from fleetbus.snapshot.outcomes import Outcome
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.sweep import OpenEpoch
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.message_key import message_key
from fleetbus.worker.connections import Connections
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import (
    STREAM,
    STREAM_SUBJECTS,
    Verb,
    check_cluster,
    decode_token,
    parse_event_subject,
)
from fleetbus_reconciler.fleet_status.accepted_uids import Identities
from fleetbus_reconciler.fleet_status.access_consent import Consents
from fleetbus_reconciler.fleet_status.cluster_status import ClusterStatus
from fleetbus_reconciler.fleet_status.fleet_state import FleetState, resource_of
from fleetbus_reconciler.fleet_status.watch_specs import WatchSpecs
from fleetbus_reconciler.list_grants.granter import Granter
from fleetbus_reconciler.projector.audit_evaluator import AuditJudge
from fleetbus_reconciler.projector.clock_skew import Clocks
from fleetbus_reconciler.projector.loss_recovery import BUCKET_BYTES, Losses, tell_stream
from fleetbus_reconciler.projector.registrations import serve_registrations
from fleetbus_reconciler.projector.sweeper import Fuse, Sweeper
from fleetbus_reconciler.projector.tombstones import TombstoneCollector
from fleetbus_reconciler.projector.unwatched_scopes import Unwatched
from fleetbus_reconciler.settings import ReconcilerSettings

log = structlog.get_logger()

_TICK: Final = timedelta(milliseconds=250)
_SLOW_TICK: Final = timedelta(seconds=5)
_LOOK: Final = timedelta(seconds=5)
_PAUSE: Final = timedelta(seconds=1)
_TURN_WITHIN: Final = timedelta(seconds=60)


async def run_projector(
    connections: Connections, settings: ReconcilerSettings, health: Health
) -> None:
    """Run the projector until cancelled.

    Raises:
        BusError: NATS refuses us, or its configuration has drifted.
        BaseExceptionGroup: a loop failed.
    """
    ready = [False]
    health.ready_when("projector", lambda: "" if ready[0] else "not bound to the bus yet")
    metrics.EVENTS_CONSUMED.labels(PROJECTOR)
    limits = StreamLimits(
        max_bytes=settings.stream_max_bytes, bucket_bytes=settings.bucket_max_bytes
    )
    bucket = await _ensure(connections.bus, limits)
    await connections.writer.ensure_generation()
    async with open_window(connections.bus) as window:
        state = FleetState(
            clusters=connections.clusters,
            reader=connections.reader,
            writer=connections.writer,
            bus=connections.bus,
            kv=connections.kv,
        )
        tombstones = TombstoneCollector(
            reader=connections.reader, writer=connections.writer, kept=settings.last_state_kept
        )
        sweeper = Sweeper(
            reader=connections.reader,
            writer=connections.writer,
            window=window,
            max_payload=lambda: connections.bus.max_payload,
            message_key=partial(message_key, connections.kv),
            state=state,
            tombstones=tombstones,
            fuse=Fuse(settings.fuse_objects, settings.fuse_percent, settings.fuse_wait),
        )
        unwatched = Unwatched(
            bus=connections.bus,
            reader=connections.reader,
            writer=connections.writer,
            state=state,
            sweeper=sweeper,
            after=settings.unwatched_after,
        )
        specs = WatchSpecs(clusters=connections.clusters, bus=connections.bus, kv=connections.kv)
        judge = AuditJudge(
            audits=Audits(connections.redis),
            state=state,
            tombstones=tombstones,
            wait=settings.audit_wait,
        )
        granter = Granter(
            bus=connections.bus, kv=connections.kv, reader=connections.reader, settings=settings
        )
        clocks = Clocks(bus=connections.bus, writer=connections.writer, state=state)
        identities = Identities(
            bus=connections.bus,
            kv=connections.kv,
            reader=connections.reader,
            writer=connections.writer,
        )
        projector = Projector(
            reader=connections.reader,
            writer=connections.writer,
            clusters=connections.clusters,
            state=state,
            sweeper=sweeper,
            granter=granter,
            judge=judge,
            clocks=clocks,
            identities=identities,
            unwatched=unwatched,
            settings=settings,
        )
        losses = Losses(
            clusters=connections.clusters,
            bus=connections.bus,
            kv=connections.kv,
            state=state,
            rebuild=projector.rebuild_store,
        )
        beacon = Beacon(
            bus=connections.bus,
            redis=connections.redis,
            consumer=PROJECTOR,
            handle=projector.handle,
            on_loss=losses.make_good,
            on_return=losses.compare,
            tell=tell_stream,
        )
        beacon.follow(PROJECTOR, STREAM_SUBJECTS)
        projector.on_handled(beacon.note)
        status = ClusterStatus(
            clusters=connections.clusters,
            reader=connections.reader,
            stale_after=settings.silent_after,
        )
        consents = Consents(
            clusters=connections.clusters,
            bus=connections.bus,
            kv=connections.kv,
            identities=identities,
        )
        consumer = Consumer(
            connections.bus.nc, stream=STREAM, durable=PROJECTOR, handle=projector.handle
        )
        turn = health.pulse("projector", _TURN_WITHIN)
        consumer.on_turn(turn)
        await projector.converge()
        ready[0] = True
        async with asyncio.TaskGroup() as group:
            group.create_task(connections.bus.failure(), name="bus failure")
            group.create_task(_consume(consumer, beacon, turn), name="consume projector")
            group.create_task(sweeper.run(), name="sweep")
            group.create_task(granter.run(), name="grants")
            group.create_task(judge.run(), name="audits")
            group.create_task(clocks.run(), name="clocks")
            group.create_task(tombstones.run(), name="tombstones")
            group.create_task(projector.follow_fleet(), name="follow fleet")
            group.create_task(projector.look_after(), name="look after epochs")
            group.create_task(projector.watch_store(), name="watch store")
            group.create_task(status.run(), name="cluster status")
            group.create_task(consents.run(), name="consents")
            group.create_task(specs.run(), name="watch specs")
            group.create_task(unwatched.run(), name="unwatched")
            group.create_task(beacon.run(), name="beacon")
            registrations = serve_registrations(connections.bus, connections.kv, _SLOW_TICK)
            group.create_task(registrations, name="registrations")
            lost = (granter.read_again, consents.read_again)
            group.create_task(
                _keep_bus(connections.bus, limits, state, lost, bucket), name="keep bus"
            )


async def _consume(consumer: Consumer, beacon: Beacon, turn: Callable[[], None]) -> None:
    """Begin with the stream when it is known up to where the store has it (rule P11)."""
    while not await beacon.settled(_PAUSE):
        turn()
    await consumer.run()


async def _ensure(bus: Bus, limits: StreamLimits) -> str:
    """Create or check what others only bind; waits for JetStream to answer.

    Returns:
        When the bucket was made.
    """
    while True:
        try:
            await ensure_stream(bus, limits)
            bucket = await ensure_bucket(bus, limits)
            await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))
        except BusError as e:
            if "is needed" in str(e):
                raise  # drifted: only a person can decide (rule B12)
            log.warning("bus_not_ready", error=str(e))
            await asyncio.sleep(_PAUSE.total_seconds())
        else:
            BUCKET_BYTES.set(bucket["state"]["bytes"])
            return str(bucket["created"])


async def _keep_bus(
    bus: Bus,
    limits: StreamLimits,
    state: FleetState,
    on_loss: Sequence[Callable[[], None]],
    bucket: str,
) -> None:
    """Make stream, bucket and our durable again after a wiped server."""
    while True:
        await asyncio.sleep(_SLOW_TICK.total_seconds())
        found = await _ensure(bus, limits)
        if found == bucket:
            continue
        log.error("bucket_was_lost")
        for read_again in on_loss:
            read_again()
        try:
            await state.want_all("the key-value bucket was lost")
        except (BusError, RedisError) as e:
            log.warning("wishes_not_written", error=str(e))
        else:
            bucket = found


class Projector:
    """The consumer's handler and the loops beside it.

    Args:
        reader: the snapshot.
        writer: the snapshot.
        clusters: the registry.
        state: what readers are told of clusters.
        sweeper: takes completed epochs.
        granter: told of what arrives of running epochs.
        judge: takes audits.
        clocks: takes what is refused for its number.
        identities: knows which cluster a message must tell of.
        unwatched: told what watchers say that they watch.
        settings: how patient it is.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        clusters: Clusters,
        state: FleetState,
        sweeper: Sweeper,
        granter: Granter,
        judge: AuditJudge,
        clocks: Clocks,
        identities: Identities,
        unwatched: Unwatched,
        settings: ReconcilerSettings,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._state = state
        self._sweeper = sweeper
        self._granter = granter
        self._judge = judge
        self._clocks = clocks
        self._identities = identities
        self._unwatched = unwatched
        self._settings = settings
        self._note: Callable[[Sequence[int]], None] = lambda _sequences: None
        # Epochs that wait for objects, and since when; the store holds what is said of them.
        self._open: dict[OpenEpoch, float] = {}
        self._changed = asyncio.Event()
        self._clusters = clusters
        self._refused = SetAside(PROJECTOR, lambda name: clusters.get(name) is not None)
        clusters.on_change(self._changed.set)

    def on_handled(self, note: Callable[[Sequence[int]], None]) -> None:
        """Call `note` with the sequences of what was handled, in stream order."""
        self._note = note

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Apply a batch in stream order; it is acknowledged when this returns (rule P9)."""
        try:
            await self._apply(deliveries)
        except StoreEmpty:
            await self.rebuild_store()
            raise  # the batch comes again
        self._note([delivery.sequence for delivery in deliveries])
        metrics.EVENTS_CONSUMED.labels(PROJECTOR).inc(len(deliveries))

    async def _apply(self, deliveries: Sequence[Delivery]) -> None:
        events: list[Event] = []
        for delivery in deliveries:
            if isinstance(delivery.message, Event):
                events.append(delivery.message)
                continue
            await self._flush(events)
            await self._take(delivery)
        await self._flush(events)

    async def _flush(self, events: list[Event]) -> None:
        """Apply what has gathered; the list is empty afterwards."""
        if events:
            result = await self._writer.apply(events)
            for completed in result.completed:
                self._sweeper.add(completed)
            self._granter.note(events)
            events.clear()

    async def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, Heartbeat | EpochEnd | AuditPage) and (
            problem := await self._identities.admit(message)
        ):
            self._refused.note(replace(delivery, problem=problem))
            if isinstance(message, EpochEnd):
                self._granter.end(message)
        elif isinstance(message, EpochEnd):
            await self._end_epoch(message)
        elif isinstance(message, Heartbeat):
            self._unwatched.hear(message)
            await self._state.hear(message)
            await self._judge.hear(message)
        elif isinstance(message, AuditPage):
            if not await self._judge.take(message):
                await self._check_history(message)
        elif message is None:
            await self._set_aside(delivery)

    async def _end_epoch(self, marker: EpochEnd) -> None:
        await self._clocks.take_back(marker.cluster)
        state = await self._writer.end_epoch(marker)
        self._granter.end(marker)
        if state.outcome is Outcome.STALE:
            await self._check_history(marker)
        # An incomplete one is found in the store by `look_after`, also after a restart.
        if state.complete:
            self._sweeper.add(state.epoch)

    async def _check_history(self, message: EpochEnd | AuditPage) -> None:
        """Ask for a new number if all that a live watcher sends of a resource is dropped (P2).

        Somebody has once published under a higher one, and no heartbeat has ever told it.
        """
        cluster, number = message.cluster, message.incarnation.number
        record = await self._reader.cluster(cluster)
        if record is None or number < record.incarnation:
            return
        if number < await self._reader.highest_incarnation(cluster, message.resource_key):
            reason = "its incarnation number is lower than one that was seen"
            await self._state.want_soon(cluster, resource_of(message), reason)

    async def _set_aside(self, delivery: Delivery) -> None:
        """A refused message is counted and told; the stream goes on (rule B18)."""
        self._refused.note(delivery)
        place = _place_of(delivery.subject)
        if delivery.ahead:
            await self._clocks.tell(delivery)
        if place and delivery.ahead:
            await self._clocks.want(*place, delivery.ahead)
        elif place:
            await self._state.want_soon(*place, "a message could not be read")

    async def converge(self) -> None:
        """Write the fleet as the registry knows it."""
        for name in await self._state.converge():
            self._sweeper.forget_cluster(name)
            self._judge.forget_cluster(name)
            self._refused.forget_cluster(name)
            with contextlib.suppress(KeyError):
                metrics.UNREADABLE.remove(PROJECTOR, name)
        for info in self._clusters.all():
            metrics.UNREADABLE.labels(PROJECTOR, info.name)

    async def rebuild_store(self) -> None:
        """The store was emptied: fill it again (rule P13)."""
        log.error("store_was_empty")
        await self._state.rebuild()
        try:
            await self._identities.restore()
        except BusError as e:  # the first heartbeat of each cluster does it
            log.warning("accepted_uids_not_restored", error=str(e))

    async def follow_fleet(self) -> None:
        """Write joins, changes and leaves as they happen."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.converge()
            except Exception as e:  # noqa: BLE001 -- Redis is away: the next turn does it
                log.warning("fleet_not_written", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
                self._changed.set()

    async def look_after(self) -> None:
        """Ask again for what did not arrive: incomplete epochs, second lists, unfinished sweeps."""
        look_every = min(_LOOK.total_seconds(), self._settings.incomplete_wait.total_seconds() / 4)
        looked = float("-inf")
        while True:
            try:
                await self._sweeper.ask_for_second_lists()
                if time.monotonic() - looked >= look_every:
                    looked = time.monotonic()
                    await self._sweeper.find_pending()
                    await self._ask_for_incomplete()
                await self._state.write_wishes()
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: the next turn does it
                log.warning("look_after_failed", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
            await asyncio.sleep(_TICK.total_seconds())

    async def watch_store(self) -> None:
        """Notice an emptied store while nothing happens, and say stale of the silent."""
        tick = min(_SLOW_TICK, self._settings.silence_look).total_seconds()
        while True:
            await asyncio.sleep(tick)
            try:
                if await self._state.is_store_empty():
                    await self.rebuild_store()
                # Also without a change: another projector may have written an older fleet.
                await self.converge()
                await self._state.mark_stale(self._settings.silent_after)
            except Exception as e:  # noqa: BLE001 -- Redis is away: the next turn does it
                log.warning("store_unreachable", error=str(e))

    async def _ask_for_incomplete(self) -> None:
        now = time.monotonic()
        found: dict[OpenEpoch, float] = {}
        for cluster in await self._reader.clusters():
            for epoch in await self._writer.open_epochs(cluster.name):
                # As long as objects still arrive it is another value, and its time starts again.
                found[epoch] = self._open.get(epoch, now)
        self._open = found
        limit = now - self._settings.incomplete_wait.total_seconds()
        for epoch, since in found.items():
            if since <= limit:
                group, _, plural = epoch.resource_key.partition("/")
                await self._state.want(
                    epoch.cluster,
                    Resource(group, "", plural),
                    "objects of an epoch did not arrive",
                    newer_than=epoch.rank.id,
                )


def _place_of(subject: str) -> tuple[str, Resource] | None:
    """Whose list makes good for an unreadable message; none for a heartbeat.

    A listed object is missing in its epoch's count, which asks for another list in time; asked at
    once, a cause that stays would make lists without end.
    """
    tokens = subject.split(".")
    try:
        if tokens[1:2] == ["epochs"]:
            cluster, group, plural = tokens[2:5]
            return check_cluster(cluster), Resource(decode_token(group), "", decode_token(plural))
        found = parse_event_subject(subject)
    except (InvalidName, ValueError):
        return None
    if found.verb is Verb.LISTED:
        return None
    return found.cluster, Resource(found.group, "", found.resource)
