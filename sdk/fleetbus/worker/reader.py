"""Reads the bus once for all controllers of a process (rules P9, B7, B12).

An event is received, decoded and looked for in the snapshot once; then each controller that watches
its resource decides about it, side by side. It is acknowledged once all of them have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery, FairBuffer
from fleetbus.bus.consume import Consumer, PartlyHandled
from fleetbus.bus.reader_groups import BoundDurable, ReaderGroup
from fleetbus.intake.binding import Binding
from fleetbus.intake.intake import ref_of
from fleetbus.intake.record import Records, load_together
from fleetbus.process.health import Health
from fleetbus.snapshot.applied import AppliedEvents
from fleetbus.snapshot.offsets.by_shard import ByShard
from fleetbus.worker.connections import Connections
from fleetbus.worker.hosted import Hosted
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
    """

    def __init__(
        self,
        hosted: Sequence[Hosted],
        connections: Connections,
        health: Health,
        *,
        group: ReaderGroup,
        durable: BoundDurable,
    ) -> None:
        self._hosted = hosted
        self._connections = connections
        self._durable = durable
        self._turn = health.liveness("consumer", _TURN_WITHIN)
        self._binding = Binding(
            connections.bus, connections.kv, group, durable=durable, beat=self._turn
        )
        self._applied = AppliedEvents(writer=connections.writer, reader=connections.reader)
        self._by_shard = ByShard(connections.keys, self._handle, probe=connections.reader.probe)
        self._of_all, self._watching = _by_resource(hosted)

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
            self._connections.bus.nc,
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
        """Hand events to the controllers; the consumer acknowledges when this returns (P9).

        Raises:
            PartlyHandled: some controllers could not enqueue; their part comes again to all, which
                is harmless for the others (P8).
            Exception: all of it has to come again.
        """
        parts: dict[Hosted, list[Delivery]] = {}
        for delivery in deliveries:
            if isinstance(delivery.message, Event):
                for one in self._interested(delivery.message):
                    parts.setdefault(one, []).append(delivery)
        failures = await self._give(parts) if parts else {}
        for delivery in deliveries:
            if delivery.message is None:
                self._hosted[0].reject(delivery)
        if failures:
            failed = {d.sequence for one in failures for d in parts[one]}
            raise PartlyHandled(failed, next(iter(failures.values())))

    async def _give(self, parts: dict[Hosted, list[Delivery]]) -> dict[Hosted, Exception]:
        """Returns the controllers that could not enqueue their part."""
        each = {d.sequence: d for part in parts.values() for d in part}
        loading = asyncio.create_task(self._load(parts), name="load records")
        try:
            # If the snapshot cannot be asked, all of it comes again.
            standing = await self._applied.ensure(_events(each.values()))
            stored = await loading
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            raise
        taking = [one.take(part, standing, stored) for one, part in parts.items()]
        if len(taking) == 1:
            answers = [await _outcome(taking[0])]
        else:
            answers = await asyncio.gather(*taking, return_exceptions=True)
        failures: dict[Hosted, Exception] = {}
        for one, answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception) and len(self._hosted) > 1:
                failures[one] = answer
            elif answer is not None:
                raise answer
        return failures

    async def _load(self, parts: Mapping[Hosted, Sequence[Delivery]]) -> Records:
        """Load what the controllers' records have of the objects, in one round trip for all."""
        wanted = {one.record: set(map(ref_of, _events(part))) for one, part in parts.items()}
        with suppress(RedisError):  # each of them tries for itself
            return await load_together(self._connections.redis, wanted)
        return {}


async def _outcome(step: Awaitable[None]) -> Exception | None:
    try:
        await step
    except Exception as e:  # noqa: BLE001 -- as `gather` returns it
        return e
    return None


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
