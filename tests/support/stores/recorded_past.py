"""A stream and a snapshot with the same events, as a projector makes it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import orjson

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import StreamLimits, ensure_stream
from fleetbus_proto import codec, headers
from fleetbus_proto.admission import subject_of
from fleetbus_query_api.past.states import PastStates
from support.eventually import eventually
from support.stores.snapshot import Snapshot
from support.wire.samples import MESSAGE_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from fleetbus.snapshot import EpochState
    from fleetbus_proto.events import EpochEnd, Event

LIMITS = StreamLimits(max_bytes=64 * 1024**2, max_age=timedelta(hours=1))


def pod(name: str, version: int, image: str = "a", **metadata: object) -> bytes:
    """The body of a pod that was created long ago, unless the metadata say else."""
    created = {"creationTimestamp": "2020-01-01T00:00:00Z", "uid": f"uid-{name}"}
    tree = {
        "metadata": {"name": name, "resourceVersion": str(version), **created, **metadata},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    return msgspec.json.encode(tree)


class RecordedPast:
    """Publishes events, and reads the past."""

    def __init__(self, bus: Bus, snapshot: Snapshot) -> None:
        self.bus = bus
        self.snapshot = snapshot
        self.states = PastStates(bus=bus, reader=snapshot.reader)

    async def record(self, *events: Event) -> datetime:
        """Publish events and apply them, but for duplicates; returns a time after the last one."""
        for event in events:
            if await self.publish(event):
                await self.snapshot.apply(event)
        return await self.now()

    async def record_end(self, end: EpochEnd) -> EpochState:
        """Publish the end of an epoch and apply it."""
        await self.publish(end)
        return await self.snapshot.writer.end_epoch(end)

    async def publish(self, message: Event | EpochEnd) -> bool:
        """Publish a message only; False if the stream dropped it as a duplicate."""
        body, head = codec.encode(message), headers.build(message, MESSAGE_KEY)
        answer = await self.bus.request(subject_of(message), body, headers=head)
        return not orjson.loads(answer.data).get("duplicate", False)

    async def now(self) -> datetime:
        """A time that nothing was stored at, neither before nor after."""
        at = datetime.now(UTC)
        await eventually(lambda: datetime.now(UTC) > at + timedelta(milliseconds=2))
        await asyncio.sleep(0)
        return at + timedelta(milliseconds=1)


@asynccontextmanager
async def recorded_past(redis: Redis, nats_url: str) -> AsyncGenerator[RecordedPast]:
    """An empty stream, and an empty snapshot of the clusters eu1 and us1."""
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    async with connected(nats_url, name="test-past") as bus:
        await ensure_stream(bus, LIMITS)
        yield RecordedPast(bus, snapshot)
