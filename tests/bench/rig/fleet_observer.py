"""Measures when sampled changes reach a bare subscriber of the bus, and the snapshot.

The subscriber is the baseline: an ordered consumer of JetStream that does nothing but decode. For
each change that it receives, the snapshot is read until it holds that version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy

from bench.rig.generated_cluster import PODS, SAMPLED
from fleetbus.bus.connection import Bus
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto import codec
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM
from fleetbus_proto.versions import version_key

_SUBJECT: Final = f"fleetbus.events.*.{PODS.group}.{PODS.plural}.{SAMPLED}.*.modified"
_PAUSE: Final = 0.002
_GIVE_UP: Final = 120.0

Waits = list[tuple[str, float, float]]
"""Waits of each change: its cluster, when it was planned, and how long it took; in seconds."""


class Observer:
    """Attributes:
    on_bus: when each change reached the subscriber.
    in_snapshot: when each was in the snapshot.
    lost: changes that the snapshot did not hold in time.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self.on_bus: Waits = []
        self.in_snapshot: Waits = []
        self.lost = 0
        self._reader = reader
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, message: Msg) -> None:
        """Take one message of the subscription."""
        event, now = codec.decode(message.data), time.time()
        assert isinstance(event, Event)
        planned = int(event.resource_version) / 1e6
        self.on_bus.append((event.cluster, planned, now - planned))
        task = asyncio.create_task(self._follow(event, planned), name="follow a change")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, event: Event, planned: float) -> None:
        name, expected = (event.namespace, event.name), version_key(event.resource_version)
        while (waited := time.time() - planned) < _GIVE_UP:
            versions = await self._reader.versions(event.cluster, PODS.key, [name])
            if name in versions and version_key(versions[name].resource_version) >= expected:
                self.in_snapshot.append((event.cluster, planned, time.time() - planned))
                return
            await asyncio.sleep(max(_PAUSE, waited / 50))  # precise enough, and cheap when it lags
        self.lost += 1

    async def aclose(self) -> None:
        """Stop following what is not there yet."""
        for task in list(self._tasks):
            await cancel_and_wait(task)


@asynccontextmanager
async def observing(bus: Bus, reader: SnapshotReader) -> AsyncGenerator[Observer]:
    """Observe changes until the block ends."""
    observer = Observer(reader)
    subscription = await bus.nc.jetstream().subscribe(
        _SUBJECT,
        stream=STREAM,
        cb=observer.receive,
        ordered_consumer=True,
        config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
    )
    try:
        yield observer
    finally:
        await subscription.unsubscribe()
        await observer.aclose()
