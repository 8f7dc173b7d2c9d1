"""Creates what others on the bus only bind: the stream, the bucket and the durables (rule B12)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import Gauge
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import (
    ensure_archiver,
    ensure_consumer,
)
from fleetbus.bus.jetstream import (
    Misconfigured,
    StreamLimits,
    ensure_all,
)
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError
from fleetbus.process.log_once import LogOnce
from fleetbus_proto.keys import KV_CONTROLLERS
from fleetbus_proto.subjects import STREAM_SUBJECTS
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.projector.reader_groups import ReaderGroups
from fleetbus_reconciler.settings import Subscriber
from fleetbus_reconciler.timing import ReconcilerTiming

log = structlog.get_logger()

BUCKET_BYTES: Final = Gauge("fleetbus_bucket_bytes", "Size of the key-value bucket.")
_WRITE_SETTLES: Final = timedelta(milliseconds=50)


class BusResources:
    """Keeps stream, bucket and durables in place, also after a wiped server.

    Args:
        bus: a connection.
        kv: the bucket.
        limits: of stream and bucket, used when they are created.
        shards: of the snapshot.
        subscribers: durables for programs of others (rule S5).
        archiver: whether the archiver has a durable, too.
        resyncs: requests lists when the bucket was lost.
        read_again: called when the bucket was lost.
        timing: when they are checked.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        kv: KeyValue,
        limits: StreamLimits,
        shards: int,
        subscribers: Sequence[Subscriber] = (),
        archiver: bool = False,
        resyncs: ResyncRequests,
        read_again: Sequence[Callable[[], None]],
        timing: ReconcilerTiming,
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._groups = ReaderGroups(bus, kv, quiet=timing.quiet_durables)
        self._limits = limits
        self._shards = shards
        self._subscribers = subscribers
        self._archiver = archiver
        self._resyncs = resyncs
        self._read_again = read_again
        self._timing = timing
        # When the bucket was created; another one took its place if that changes.
        self._bucket = ""
        self._log_once = LogOnce()

    async def ensure(self) -> None:
        """Create or check all but the durables of controllers.

        Raises:
            Misconfigured: their configuration has drifted, or the server cannot have it.
            BusError: JetStream does not answer, or refuses.
        """
        self._bucket = await self._ensure()

    async def run(self) -> None:
        """Create again what was lost, until cancelled.

        Raises:
            Misconfigured: their configuration has drifted; only a person can decide (rule B12).
        """
        while True:
            await asyncio.sleep(self._timing.checks.total_seconds())
            created = await self._ensure_again()
            if created == self._bucket:
                continue
            log.error("bucket_was_lost")
            for read_again in self._read_again:
                read_again()
            try:
                await self._resyncs.request_all("the key-value bucket was lost")
            except (BusError, RedisError) as e:
                log.warning("resyncs_not_requested", error=str(e))
            else:
                self._bucket = created

    async def _ensure(self) -> str:
        """Return when the bucket was created."""
        bucket = await ensure_all(self._bus, self._limits)
        await ensure_consumer(self._bus, PROJECTOR, list(STREAM_SUBJECTS), shards=self._shards)
        if self._archiver:
            await ensure_archiver(self._bus)
        for subscriber in self._subscribers:
            await self._ensure_subscriber(subscriber)
        BUCKET_BYTES.set(bucket["state"]["bytes"])
        return str(bucket["created"])

    async def _ensure_again(self) -> str:
        """The same, which waits for JetStream to answer."""
        while True:
            try:
                return await self._ensure()
            except Misconfigured:
                raise
            except BusError as e:
                if self._log_once.should_log(str(e)):
                    log.warning("bus_not_ready", error=str(e))
                await asyncio.sleep(self._timing.retry.total_seconds())

    async def _ensure_subscriber(self, subscriber: Subscriber) -> None:
        """Create a durable; one that delivers something else is left to its subscriber."""
        try:
            await ensure_consumer(
                self._bus, subscriber.durable, subscriber.subjects, stream=subscriber.stream
            )
        except Misconfigured as e:
            # Changed subjects of one subscriber may not stop the projector; a new name takes them.
            if self._log_once.should_log(str(e)):
                log.warning("subscriber_drifted", durable=subscriber.durable, error=str(e))

    async def serve_registrations(self) -> None:
        """Create the durables that controllers register, when they do and every few seconds."""
        changed = asyncio.Event()
        async with self._kv.follow(KV_CONTROLLERS, lambda _key, _value: changed.set()):
            while True:
                changed.clear()
                await self._serve_all()
                if await _is_set(changed, self._timing.checks):
                    # A write is announced when it is sent; the bucket holds it a moment later.
                    await asyncio.sleep(_WRITE_SETTLES.total_seconds())

    async def _serve_all(self) -> None:
        try:
            await self._groups.serve()
        except BusError as e:
            log.warning("registrations_not_read", error=str(e))
            await asyncio.sleep(self._timing.retry.total_seconds())


async def _is_set(event: asyncio.Event, within: timedelta) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within.total_seconds()):
            await event.wait()
    return event.is_set()
