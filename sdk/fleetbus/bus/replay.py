"""Reads the stream again after the store was lost or rolled back (rules P11, P12).

The queue was lost with the store. After a total loss new lists bring back every object that exists,
and with it its request; only the stream still has the deletions. After a loss of the last writes
all of them are on the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.consume import Consumer, Handle
from fleetbus.bus.durables import consumer_info, delete_consumer, ensure_consumer
from fleetbus.errors import BusError
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, Verb

log = structlog.get_logger()

_POLL: Final = timedelta(milliseconds=100)
_LAG: Final = timedelta(seconds=1)
"""Time that a replica of the stream may lag behind its leader."""


async def replay(
    bus: Bus, consumer: str, filters: Sequence[str], handle: Handle, *, first: int, last: int
) -> None:
    """Hand the messages between two sequences to `handle` again, in batches and in order.

    Args:
        bus: a connection.
        consumer: whose messages; the replaying consumer is named after it (rule S4).
        filters: what it watches, as subjects.
        handle: handles a batch; a batch that failed is handed over again.
        first: the first sequence.
        last: when this returns, everything up to here is handled; perhaps also later messages.

    Raises:
        BusError: not everything was read; to be repeated. It also hits one of two processes that
            replay at the same time, because they share one consumer: see `claimed`.
    """
    await _read_again(bus, consumer, sorted(filters), handle, first=first, last=last)


async def replay_deletions(
    bus: Bus, controller: str, filters: Sequence[str], handle: Handle
) -> None:
    """Hand every deletion that is still in the stream to `handle`; see `replay`."""
    deletions = sorted(_deletions(subject) for subject in filters)
    await _read_again(bus, controller, deletions, handle, first=0, last=None)


async def _read_again(
    bus: Bus, consumer: str, filters: Sequence[str], handle: Handle, *, first: int, last: int | None
) -> None:
    name = f"{consumer}-replay"
    await delete_consumer(bus, name)
    await ensure_consumer(bus, name, filters, start=first)
    reader = Consumer(bus, stream=STREAM, durable=name, handle=handle)
    reading = asyncio.create_task(reader.run(), name=f"replay {consumer}")
    try:
        idle = _Idle()
        while not _is_through(await _info(bus, name), idle, last):
            await asyncio.wait([reading], timeout=_POLL.total_seconds())
            if reading.done():
                await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        with contextlib.suppress(BusError):
            await delete_consumer(bus, name)


async def _info(bus: Bus, name: str) -> dict[str, Any]:
    info = await consumer_info(bus, name)
    if info is None:
        raise BusError(f"consumer {name} is gone; is another process replaying?")
    return info


class _Idle:
    """For how long a consumer has had nothing pending."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_idle(self, info: dict[str, Any]) -> bool:
        if info["num_pending"] or info["num_ack_pending"]:
            self._since = None
            return False
        if not info.get("cluster", {}).get("replicas"):
            return True
        # Its server may hold a replica of the stream that lags behind for a moment.
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= _LAG.total_seconds()


def _is_through(info: dict[str, Any], idle: _Idle, last: int | None) -> bool:
    if idle.is_idle(info):
        return True
    # With a steady flow of new messages something is always pending.
    return last is not None and info["ack_floor"]["stream_seq"] >= last


def _deletions(subject: str) -> str:
    """The subject of the deletions among the events of a filter."""
    prefix = subject.removesuffix(">")
    places = "*.*." if subject != EVENTS_ALL else "*.*.*.*.*."
    return f"{prefix}{places}{Verb.DELETED.value}"
