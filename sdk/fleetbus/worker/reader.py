"""Reads the bus once for all controllers of a process (rules P9, B7, B12).

An event is received, decoded and looked for in the snapshot once; then each controller that watches
its resource decides about it, side by side. It is acknowledged once all of them have it; one that
is late holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery, FairBuffer
from fleetbus.bus.consume import Consumer
from fleetbus.bus.reader_groups import BoundDurable, ReaderGroup
from fleetbus.controller.filters import PartialMetadata, read_metadata
from fleetbus.intake.binding import Binding
from fleetbus.intake.intake import ref_of
from fleetbus.intake.record import Records, load_together
from fleetbus.process.health import Health
from fleetbus.snapshot.applied import AppliedEvents
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.snapshot.offsets.by_shard import ByShard
from fleetbus.worker.backlog import LATE, PATIENCE, Backlog
from fleetbus.worker.connections import Connections
from fleetbus.worker.hosted import Hosted, ReadMetadata
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM

_TURN_WITHIN: Final = timedelta(seconds=60)


class Reader:
    """The reader of one process.

    Args:
        hosted: its controllers.
        connections: bus and store.
        health: shows that it reads.
        group: the controllers, as they are registered.
        durable: is bound.
        applied: makes sure that events are in the snapshot.
    """

    def __init__(
        self,
        hosted: Sequence[Hosted],
        connections: Connections,
        health: Health,
        *,
        group: ReaderGroup,
        durable: BoundDurable,
        applied: AppliedEvents | AppliedHere,
    ) -> None:
        self._hosted = hosted
        self._connections = connections
        self._durable = durable
        self._turn = health.liveness("consumer", _TURN_WITHIN)
        self._binding = Binding(
            connections.bus, connections.kv, group, durable=durable, beat=self._turn
        )
        self._applied = applied
        self._by_shard = ByShard(connections.keys, self._handle, probe=connections.reader.probe)
        self._of_all, self._watching = _by_resource(hosted)
        limit = LATE // len(hosted)
        self._backlogs = {
            each: Backlog(each.name, take=each.take, skip=each.skip, limit=limit) for each in hosted
        }

    async def run(self) -> None:
        """Consume from the durable that is ours, whichever that is at the time (rule B12)."""
        try:
            while True:
                consumer = self._make_consumer(await self._binding.bind())
                async with asyncio.TaskGroup() as group:
                    consuming = group.create_task(consumer.run(), name="pull")
                    await self._binding.lost()
                    consuming.cancel()
        finally:
            await self._by_shard.aclose()

    def _make_consumer(self, durable: str) -> Consumer:
        return Consumer(
            self._connections.bus,
            stream=STREAM,
            durable=durable,
            handle=self._by_shard.handle,
            buffer=FairBuffer(self._count_superseded, is_skippable=self._is_skippable),
            on_turn=self._turn,
        )

    def _interested(self, event: Event) -> Sequence[Hosted]:
        return self._watching.get(event.resource_key, self._of_all)

    def _is_skippable(self, older: Event, newer: Event) -> bool:
        return all(one.router.is_skippable(older, newer) for one in self._interested(newer))

    def _count_superseded(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Event):
            for one in self._interested(delivery.message):
                one.count_superseded()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        """Hand events to the controllers; the consumer acknowledges when all have them (P9).

        Raises:
            Exception: all of it has to come again, which is harmless (P8).
        """
        parts: dict[Hosted, list[Delivery]] = {}
        for delivery in deliveries:
            if isinstance(delivery.message, Event):
                for hosted in self._interested(delivery.message):
                    parts.setdefault(hosted, []).append(delivery)
        if parts:
            await self._give(parts)
        for delivery in deliveries:
            if delivery.message is None:
                self._hosted[0].reject(delivery)

    async def _give(self, parts: dict[Hosted, list[Delivery]]) -> None:
        each = {d.sequence: d for part in parts.values() for d in part}
        # If the snapshot cannot be asked, all of it comes again.
        standing = await self._applied.ensure(_events(each.values()))
        # Second: who writes a record compares it with the snapshot afterwards. In the other order
        # an object that leaves the selection meanwhile would be overlooked by both sides (P8).
        stored = await self._load(parts)
        if len(self._hosted) == 1:
            await self._hosted[0].take(list(each.values()), standing, stored)
            return
        read = _metadata_reader()
        tasks: dict[asyncio.Task[None], tuple[Backlog, Sequence[Delivery]]] = {}
        try:
            for hosted, part in parts.items():
                backlog = self._backlogs[hosted]
                if new := hosted.without_refused(await backlog.line_up(part), stored, read):
                    tasks[backlog.start(new, standing, stored)] = (backlog, new)
            for task in await _wait_briefly(tasks):
                backlog, part = tasks.pop(task)
                await backlog.let_go(task, part)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _load(self, parts: Mapping[Hosted, Sequence[Delivery]]) -> Records:
        """Load what the controllers' records have of the objects, in one round trip for all."""
        wanted = {one.record: set(map(ref_of, _events(part))) for one, part in parts.items()}
        with suppress(RedisError):  # each of them tries for itself
            return await load_together(self._connections.redis, wanted)
        return {}


async def _wait_briefly(tasks: Collection[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Return the tasks that have not ended after `PATIENCE`."""
    if not tasks:
        return set()
    _, late = await asyncio.wait(tasks, timeout=PATIENCE.total_seconds())
    return late


def _metadata_reader() -> ReadMetadata:
    """Reads labels and annotations of each event of a batch once for all controllers."""
    found: dict[int, PartialMetadata | None] = {}

    def read(delivery: Delivery) -> PartialMetadata | None:
        if delivery.sequence not in found:
            event = delivery.message
            body = event.object if isinstance(event, Event) else None
            found[delivery.sequence] = None if body is None else read_metadata(body)
        return found[delivery.sequence]

    return read


def _events(deliveries: Iterable[Delivery]) -> list[Event]:
    return [d.message for d in deliveries if isinstance(d.message, Event)]


def _by_resource(
    hosted: Sequence[Hosted],
) -> tuple[Sequence[Hosted], Mapping[str, Sequence[Hosted]]]:
    """The controllers that watch every resource, and those that watch one, by its key."""
    watched = {one: [watch.resource for watch in one.controller.watches] for one in hosted}
    keys = {resource.key for each in watched.values() for resource in each if resource}
    by_key = {
        key: [
            one
            for one, each in watched.items()
            if any(resource is None or resource.key == key for resource in each)
        ]
        for key in keys
    }
    return [one for one, each in watched.items() if None in each], by_key
