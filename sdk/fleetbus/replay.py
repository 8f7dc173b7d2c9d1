"""The stream's deletions, read again by a controller after the store was lost.

What stood in the queue went with the store. New lists bring back every object that lives, and with
it its request; only the stream still names what was deleted (SEMANTICS section 3, "Redis empty").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.bus import Bus
from fleetbus.consume import Consumer, Handle
from fleetbus.durables import consumer_info, delete_consumer, ensure_consumer
from fleetbus.errors import BusError
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, Verb

log = structlog.get_logger()

_LOOK_EVERY: Final = timedelta(milliseconds=100)


async def replay_deletions(
    bus: Bus, controller: str, filters: Sequence[str], handle: Handle
) -> None:
    """Hand every deletion that the stream still holds to `handle`, in batches.

    Args:
        bus: a connection.
        controller: whose; the consumer's name follows from it (rule S4).
        filters: what the controller watches, as subjects.
        handle: enqueues; a batch whose handling failed is handed over again.

    Raises:
        BusError: not all was read; to be repeated. So it is for one of two processes that replay
            at the same time, which have one consumer between them.
    """
    name = f"{controller}-replay"
    await delete_consumer(bus, name)
    await ensure_consumer(bus, name, sorted(_deletions(subject) for subject in filters))
    consumer = Consumer(bus.nc, stream=STREAM, durable=name, handle=handle)
    reading = asyncio.create_task(consumer.run(), name=f"replay {controller}")
    try:
        while not await _is_through(bus, name):
            await asyncio.wait([reading], timeout=_LOOK_EVERY.total_seconds())
            if reading.done():
                await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        with contextlib.suppress(BusError):
            await delete_consumer(bus, name)


async def _is_through(bus: Bus, name: str) -> bool:
    info = await consumer_info(bus, name)
    if info is None:
        raise BusError(f"the consumer {name} has gone; is another process replaying?")
    return info["num_pending"] == 0 and info["num_ack_pending"] == 0


def _deletions(subject: str) -> str:
    """Of a filter for all events of a resource, or for all events."""
    prefix = subject.removesuffix(">")
    places = "*.*." if subject != EVENTS_ALL else "*.*.*.*.*."
    return f"{prefix}{places}{Verb.DELETED.value}"
