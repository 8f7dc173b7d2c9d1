"""Publishes the events of the distributor, beside the rounds, which never wait for the bus.

Events are a convenience, and the status is what holds: while the bus is away the newest events are
kept, up to a limit, and what does not fit or is not stored within a minute is lost and counted.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import Counter

from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import Bus
from fleetbus.bus.window import Window, open_window
from fleetbus.process.log_once import LogOnce
from fleetbus_proto.distribution import (
    CONTENT_TYPE,
    DistributionEvent,
    distribution_event_id,
    encode_distribution_event,
)
from fleetbus_proto.headers import MSG_ID
from fleetbus_proto.subjects import distribution_subject

log = structlog.get_logger()

OUTCOMES: Final = ("published", "lost")
DISTRIBUTION_EVENTS: Final = Counter(
    "fleetbus_distribution_events_total",
    f"Events of the distributor by outcome: {', '.join(OUTCOMES)}.",
    ["outcome"],
)
_CAPACITY: Final = 10_000
_DRAIN: Final = timedelta(seconds=1)


class EventPublisher:
    """Publishes events in the order in which they are offered.

    Args:
        bus: a connection.
        capacity: how many events wait at most; then the oldest are lost.
    """

    def __init__(self, bus: Bus, *, capacity: int = _CAPACITY) -> None:
        self._bus = bus
        self._capacity = capacity
        self._waiting: deque[tuple[DistributionEvent, str]] = deque()
        self._offered = asyncio.Event()
        # Nobody else may know an id beforehand: a vote with that id would displace the event.
        self._key = secrets.token_bytes(32)
        self._log_once = LogOnce()
        for outcome in OUTCOMES:
            DISTRIBUTION_EVENTS.labels(outcome)

    def offer(self, events: Sequence[DistributionEvent], version: str) -> None:
        """Take events to publish; does not wait.

        Args:
            events: in order.
            version: the resourceVersion from which they were found: a round that finds them again
                from the same one does not publish them again (rule D27).
        """
        self._waiting.extend((event, version) for event in events)
        excess = max(0, len(self._waiting) - self._capacity)
        for _ in range(excess):
            self._waiting.popleft()
        if excess:
            self._lose(excess, "the bus has been unavailable for too long")
        if self._waiting:
            self._offered.set()

    async def run(self) -> None:
        """Publish until cancelled; what waits then is still sent, if that takes a moment only."""
        async with open_window(self._bus) as window:
            try:
                while True:
                    await self._offered.wait()
                    await self._publish_waiting(window)
            finally:
                await self._finish(window)

    async def _publish_waiting(self, window: Window) -> None:
        while self._waiting:
            event, version = self._waiting.popleft()
            subject = distribution_subject(event.namespace, event.name, event.cluster, event.event)
            event_id = distribution_event_id(event, version, self._key)
            headers = {MSG_ID: event_id, "content-type": CONTENT_TYPE}
            body = encode_distribution_event(event)
            try:
                await window.publish(subject, body, headers, self._settle)
            except asyncio.CancelledError:
                self._waiting.appendleft((event, version))  # it may have been sent: the id is equal
                raise
            if self._waiting:
                await asyncio.sleep(0)  # a publication alone need not give way to other tasks
        self._offered.clear()

    async def _finish(self, window: Window) -> None:
        try:
            async with asyncio.timeout(_DRAIN.total_seconds()):
                await self._publish_waiting(window)
                await window.drain(_DRAIN)
        except TimeoutError:
            pass
        lost = len(self._waiting) + window.in_flight
        if lost:
            self._lose(lost, "the process ends")

    def _settle(self, ack: Ack) -> None:
        if ack.error is None:
            DISTRIBUTION_EVENTS.labels("published").inc()
            self._log_once.reset()
        else:
            self._lose(1, ack.error.description)

    def _lose(self, count: int, why: str) -> None:
        DISTRIBUTION_EVENTS.labels("lost").inc(count)
        if self._log_once.should_log(why):
            log.warning("distribution_events_lost", count=count, error=why)
