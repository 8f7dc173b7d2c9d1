"""Messages that left the stream before a consumer had handled them are noticed (rule B17).

The stream drops what is too old or too much without a word. So of each durable consumer the
low-water sequence is kept, up to which it has handled everything that is its own, and compared
with the first sequence that the stream still holds. It is kept in the store, beside what the
messages did: after an outage the server's own numbers may look as if nothing had been missed.

The projector does this for every consumer: it owns the durables (rule B12), and nobody else needs
the right to ask about the stream. A gap of its own costs epochs of everything; a controller sees
that its breaks are more than at its last full enqueue, and does another one (rule P12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from prometheus_client import Counter, Gauge
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus import Bus, KeyValue, stream_info
from fleetbus.durables import PROJECTOR, consumer_info, read_registration, registered_controllers
from fleetbus.errors import FleetbusError
from fleetbus_proto.keys import beacon

log = structlog.get_logger()

LOOK_EVERY: Final = timedelta(seconds=2)
"""Often: what a controller handled and left the stream since the last look is taken for a gap."""
_ASK_AGAIN_AFTER: Final = timedelta(seconds=60)
"""What is asked for after a gap fills the stream again: it gets the time to be read."""
STREAM_SUBJECTS_HELD: Final = Gauge(
    "fleetbus_stream_subjects", "Subjects that the stream of events holds messages of."
)
STREAM_BYTES: Final = Gauge("fleetbus_stream_bytes", "Size of the stream of events.")
STREAM_MESSAGES: Final = Gauge("fleetbus_stream_messages", "Messages in the stream of events.")
GAPS: Final = Counter(
    "fleetbus_stream_gaps_total",
    "How often messages left the stream before a durable consumer had handled them.",
    ["durable"],
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Up to where a consumer has handled what is its own, in which stream."""

    stream: str
    """When the stream was made: another one has numbers of its own."""
    low: int


class GapWatch:
    """Looks after the stream and all its durable consumers.

    Args:
        bus: a connection.
        kv: where registrations are.
        redis: the snapshot's store.
        want_all: asks for epochs of everything; called when the projector missed messages.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        kv: KeyValue,
        redis: Redis,
        want_all: Callable[[str], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._redis = redis
        self._want_all = want_all
        self._quiet_until: dict[str, float] = {}
        # What the projector has handled last, without a hole: first and last sequence.
        self._handled = (0, 0)
        GAPS.labels(PROJECTOR)

    def note(self, sequences: Sequence[int]) -> None:
        """The projector has handled these messages, in stream order.

        Only with this is it known of what left the stream since the last look that it was handled.
        """
        start, end = self._handled
        for sequence in sequences:
            if sequence > end:
                start = start if sequence == end + 1 else sequence
                end = sequence
        self._handled = (start, end)

    async def run(self) -> None:
        """Look at once, and again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except (FleetbusError, RedisError) as e:
                # NATS or Redis is away: what is missed meanwhile is found at the next look.
                log.warning("gaps_not_looked_for", error=str(e))
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def look(self) -> None:
        """Look at every consumer once.

        Raises:
            BusError: nothing is known of the stream, or a wish was not written.
            redis.exceptions.RedisError: the store is away.
        """
        before = await stream_info(self._bus)
        # Asked second: who has nothing left to do has surely handled all up to the end above.
        consumers = await self._consumers()
        # Again: the server moves an ack floor over what it drops, as if that had been handled.
        stream = await stream_info(self._bus)
        if before is None or stream is None or before["created"] != stream["created"]:
            return
        _tell(stream["state"])
        for durable, consumer in consumers.items():
            if time.monotonic() >= self._quiet_until.get(durable, float("-inf")):
                low = _low_water(before, consumer)
                await self._compare(durable, _Mark(str(stream["created"]), low), stream["state"])

    async def _consumers(self) -> dict[str, Mapping[str, Any]]:
        durables = [PROJECTOR]
        for controller in await registered_controllers(self._bus):
            registration = await read_registration(self._kv, controller)
            if registration is not None and registration.durable:
                durables.append(registration.durable)
        found = {durable: await consumer_info(self._bus, durable) for durable in durables}
        return {durable: info for durable, info in found.items() if info is not None}

    async def _compare(self, durable: str, found: _Mark, state: Mapping[str, Any]) -> None:
        GAPS.labels(durable)
        held = await self._held(durable)
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if held is not None and (held.stream != found.stream or held.low > last):
            # The bus was wiped or set back. The watchers notice it and list everything (W9).
            log.error("stream_was_lost", durable=durable)
            self._handled = (0, 0)
            await self._keep(durable, found, is_break=True)
            return
        handled = self._handled_after((held or found).low, durable)
        low = max(handled, found.low)
        if first <= handled + 1:
            if held is None or low > held.low:
                await self._keep(durable, _Mark(found.stream, low), is_break=False)
            return
        log.error(
            "messages_left_unhandled", durable=durable, low_water=handled, first_sequence=first
        )
        if durable == PROJECTOR:
            # First: a gap that is not asked about stands, and the next look finds it again.
            await self._want_all("messages left the stream before the projector had read them")
        await self._keep(durable, _Mark(found.stream, max(low, first - 1)), is_break=True)
        GAPS.labels(durable).inc()
        self._quiet_until[durable] = time.monotonic() + _ASK_AGAIN_AFTER.total_seconds()

    def _handled_after(self, low: int, durable: str) -> int:
        start, end = self._handled
        return max(low, end) if durable == PROJECTOR and start <= low + 1 else low

    async def _held(self, durable: str) -> _Mark | None:
        answer = await self._redis.hmget(beacon(durable), ["stream", "low"])
        stream, low = cast("list[bytes | None]", answer)
        return _Mark(stream.decode(), int(low)) if stream and low else None

    async def _keep(self, durable: str, mark: _Mark, *, is_break: bool) -> None:
        key = beacon(durable)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping={"stream": mark.stream, "low": mark.low})
            if is_break:
                pipe.hincrby(key, "breaks", 1)
            await pipe.execute()


def _low_water(stream: Mapping[str, Any], consumer: Mapping[str, Any]) -> int:
    """The stream's end if the consumer has nothing left to do, else its ack floor.

    The ack floor of a consumer that gets nothing for long stays where it was.
    """
    if consumer["num_pending"] == 0 and consumer["num_ack_pending"] == 0:
        return int(stream["state"]["last_seq"])
    return int(consumer["ack_floor"]["stream_seq"])


def _tell(state: Mapping[str, Any]) -> None:
    """The server's memory grows with the subjects (rule B16)."""
    STREAM_SUBJECTS_HELD.set(state.get("num_subjects", 0))
    STREAM_BYTES.set(state["bytes"])
    STREAM_MESSAGES.set(state["messages"])
