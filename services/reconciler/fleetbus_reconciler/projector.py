"""The projector: the built-in consumer that keeps the snapshot for all watched resources.

It creates the stream, the bucket and the durables (rule B12), applies every event, finishes
epochs, publishes the deletions that a relist found, and tells readers how fresh each answer is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from fleetbus import metrics
from fleetbus.bus import Bus, KeyValue, ensure_bucket, ensure_stream
from fleetbus.clusters.registry import Clusters
from fleetbus.consume import Consumer, Delivery
from fleetbus.durables import (
    PROJECTOR,
    ensure_consumer,
    registered_controllers,
    serve_registration,
)
from fleetbus.errors import BusError
from fleetbus.health import Health
from fleetbus.host import Links
from fleetbus.snapshot.connection import StoreEmpty
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.window import open_window
from fleetbus_proto.events import EpochEnd, Event, Heartbeat
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from fleetbus_reconciler.fleet_state import FleetState, resource_of
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.sweep import Fuse, Sweeper

log = structlog.get_logger()

_TICK: Final = timedelta(milliseconds=250)
_SLOW_TICK: Final = timedelta(seconds=5)
_PAUSE: Final = timedelta(seconds=1)
_TURN_WITHIN: Final = timedelta(seconds=60)


async def run_projector(links: Links, settings: ReconcilerSettings, health: Health) -> None:
    """Run the projector until cancelled."""
    ready = [False]
    health.ready_when("projector", lambda: "" if ready[0] else "not bound to the bus yet")
    metrics.EVENTS_CONSUMED.labels(PROJECTOR)
    metrics.UNREADABLE.labels(PROJECTOR)
    await _ensure(links.bus)
    await links.writer.ensure_generation()
    async with open_window(links.bus) as window:
        state = FleetState(
            clusters=links.clusters,
            reader=links.reader,
            writer=links.writer,
            bus=links.bus,
            kv=links.kv,
        )
        fuse = Fuse(settings.fuse_objects, settings.fuse_percent, settings.fuse_wait)
        sweeper = Sweeper(
            reader=links.reader, writer=links.writer, window=window, state=state, fuse=fuse
        )
        projector = Projector(
            writer=links.writer,
            clusters=links.clusters,
            state=state,
            sweeper=sweeper,
            settings=settings,
        )
        consumer = Consumer(links.bus.nc, stream=STREAM, durable=PROJECTOR, handle=projector.handle)
        consumer.on_turn(health.pulse("projector", _TURN_WITHIN))
        await projector.converge()
        ready[0] = True
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run(), name="consume projector")
            group.create_task(sweeper.run(), name="sweep")
            group.create_task(projector.follow_fleet(), name="follow fleet")
            group.create_task(projector.look_after(), name="look after epochs")
            group.create_task(projector.watch_store(), name="watch store")
            group.create_task(_serve_registrations(links.bus, links.kv), name="registrations")
            group.create_task(_keep_bus(links.bus), name="keep bus")


async def _ensure(bus: Bus) -> None:
    """Create or check what others only bind; waits for JetStream to answer."""
    while True:
        try:
            await ensure_stream(bus)
            await ensure_bucket(bus)
            await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))
        except BusError as e:
            if "is needed" in str(e):
                raise  # drifted: only a person can decide (rule B12)
            log.warning("bus_not_ready", error=str(e))
            await asyncio.sleep(_PAUSE.total_seconds())
        else:
            return


async def _keep_bus(bus: Bus) -> None:
    """Make the stream and our durable again after a wiped server."""
    while True:
        await asyncio.sleep(_SLOW_TICK.total_seconds())
        await _ensure(bus)


async def _serve_registrations(bus: Bus, kv: KeyValue) -> None:
    """Make the durables that controllers ask for; woken by their writes, and now and then."""
    changed = asyncio.Event()
    async with kv.follow("_controllers", lambda _key, _value: changed.set()):
        while True:
            changed.clear()
            try:
                for name in await registered_controllers(bus):
                    await serve_registration(bus, kv, name)
            except BusError as e:
                log.warning("registration_failed", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
            try:
                async with asyncio.timeout(_SLOW_TICK.total_seconds()):
                    await changed.wait()
            except TimeoutError:
                continue


@dataclass(slots=True)
class _Open:
    """An epoch whose end marker came before all of its objects (rule P5)."""

    marker: EpochEnd
    since: float = field(default_factory=time.monotonic)


class Projector:
    """The consumer's handler and the loops beside it.

    Args:
        writer: the snapshot.
        clusters: the registry.
        state: what readers are told of clusters.
        sweeper: takes completed epochs.
        settings: how patient it is.
    """

    def __init__(
        self,
        *,
        writer: SnapshotWriter,
        clusters: Clusters,
        state: FleetState,
        sweeper: Sweeper,
        settings: ReconcilerSettings,
    ) -> None:
        self._writer = writer
        self._state = state
        self._sweeper = sweeper
        self._settings = settings
        self._open: dict[tuple[str, str, str], _Open] = {}
        self._changed = asyncio.Event()
        clusters.on_change(self._changed.set)

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Apply a batch in stream order; it is acknowledged when this returns (rule P9)."""
        try:
            await self._apply(deliveries)
        except StoreEmpty:
            # The store was emptied: a new generation; heartbeats show what it lacks (P13, P14).
            await self._rebuild_store()
            raise
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
                self._complete(completed)
            events.clear()

    async def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, EpochEnd):
            await self._end_epoch(message)
        elif isinstance(message, Heartbeat):
            await self._state.hear(message)
        elif message is None:
            await self._set_aside(delivery)

    async def _end_epoch(self, marker: EpochEnd) -> None:
        state = await self._writer.end_epoch(marker)
        if state.complete:
            self._complete(state.epoch)
        elif state.counted < state.expected and state.outcome == "applied":
            self._open[_scope_of(marker)] = _Open(marker)

    def _complete(self, completed: CompletedEpoch) -> None:
        self._open.pop((completed.cluster, completed.resource_key, completed.scope), None)
        self._sweeper.add(completed)

    async def _set_aside(self, delivery: Delivery) -> None:
        """An unreadable message is counted and told; the stream goes on (rule B18)."""
        metrics.UNREADABLE.labels(PROJECTOR).inc()
        log.error(
            "message_set_aside",
            subject=delivery.subject,
            sequence=delivery.sequence,
            reason=delivery.problem,
        )

    async def converge(self) -> None:
        """Write the fleet as the registry knows it."""
        await self._state.converge()

    async def _rebuild_store(self) -> None:
        """Redis was emptied: a new generation; heartbeats then show what it lacks (P13, P14)."""
        log.error("store_was_empty")
        await self._writer.ensure_generation()
        await self._state.converge()

    async def follow_fleet(self) -> None:
        """Write joins, changes and leaves as they happen."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._state.converge()
            except Exception as e:  # noqa: BLE001 -- Redis is away: the next turn does it
                log.warning("fleet_not_written", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
                self._changed.set()

    async def look_after(self) -> None:
        """Ask again for what did not arrive: incomplete epochs, second lists."""
        while True:
            await asyncio.sleep(_TICK.total_seconds())
            try:
                await self._ask_for_incomplete()
                await self._sweeper.ask_for_second_lists()
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: the next turn does it
                log.warning("look_after_failed", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())

    async def watch_store(self) -> None:
        """Notice an emptied store while nothing happens, and say stale of the silent."""
        while True:
            await asyncio.sleep(_SLOW_TICK.total_seconds())
            try:
                if await self._state.is_store_empty():
                    await self._rebuild_store()
                await self._state.mark_stale(self._settings.stale_after)
            except Exception as e:  # noqa: BLE001 -- Redis is away: the next turn does it
                log.warning("store_unreachable", error=str(e))

    async def _ask_for_incomplete(self) -> None:
        limit = time.monotonic() - self._settings.incomplete_wait.total_seconds()
        for key, found in list(self._open.items()):
            if found.since <= limit:
                del self._open[key]
                await self._state.want(
                    found.marker.cluster,
                    resource_of(found.marker),
                    "objects of an epoch did not arrive",
                    last_epoch=found.marker.epoch.id,
                )


def _scope_of(marker: EpochEnd) -> tuple[str, str, str]:
    return (marker.cluster, f"{marker.group}/{marker.resource}", marker.scope)
