"""Schedules the audits of one resource over all replicas (rules W15, W18)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.errors import FleetbusError, Gone, KubeError
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.list_watch.listing import JSON, METADATA
from fleetbus.process.clock import now_ms
from fleetbus_proto.keys import kv_audit
from fleetbus_watcher.errors import AuditAbandoned
from fleetbus_watcher.follow.list_limits import PageSizes
from fleetbus_watcher.follow.resource_watcher import ResourceWatcher
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import WatcherTiming

_HUGE: Final = 100_000
"""Objects of a resource that is audited at the longest interval."""
_NOT_SYNCED: Final = timedelta(seconds=5)
_REFUSALS: Final = frozenset({400, 406, 415})
"""The status of a server that does not support the requested format."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last audit that was begun, as JSON in the bucket; all replicas read it."""

    id: int
    """When, in ms; also the id in the audit's rank."""
    renewed: int = 0
    """When its replica last reported progress, in ms."""
    complete: bool = False
    objects: int = 0
    """Number of objects of the last complete audit."""
    request: str = ""
    """The last audit request that was fulfilled, or is being fulfilled."""

    @property
    def active_at(self) -> int:
        """When there was last a sign of it, in ms."""
        return max(self.id, self.renewed)


_decoder = msgspec.json.Decoder(_Record)
_NEVER: Final = _Record(0)


def interval(objects: int, shortest: timedelta, longest: timedelta) -> timedelta:
    """Return the longest time between two audits of a resource with so many objects."""
    return max(min(objects / _HUGE, 1) * longest, shortest)


class AuditSchedule:
    """The audit schedule of one resource and scope.

    Args:
        kv: the bucket.
        settings: how often.
        timing: when it is renewed, and taken over.
        watcher: of the resource.

    Attributes:
        watcher: of the resource.
        due: when the next one begins, by the event loop's clock.
        accept: the list format that the server supports.
        sizes: the page sizes that it supports.
    """

    def __init__(
        self,
        kv: KeyValue,
        settings: WatcherSettings,
        timing: WatcherTiming,
        watcher: ResourceWatcher,
    ) -> None:
        self._kv = kv
        self._settings = settings
        self._timing = timing
        resource = watcher.target.resource
        self._key = kv_audit(settings.cluster, resource.group, resource.plural, watcher.scope)
        self._record, self._revision = _NEVER, 0
        self._backoff = ApiBackoff(settings.backoff)
        self._request = ""
        # The id of our own unfinished audit; it may have failed and be retried.
        self._claimed = 0
        self.watcher = watcher
        self.due = float("inf")
        self.accept = METADATA
        self.sizes = PageSizes(settings.page_size)

    async def read(self, request: str) -> None:
        """Read the last audit, perhaps of a peer replica or an earlier life, and schedule the next.

        Raises:
            BusError: it could not be read.
        """
        await self._read()
        self.due = _now() + self._pause(request)

    def set_request(self, request: str) -> None:
        """Begin now if this request is new, and not fulfilled yet.

        One that is not new has been tried, and waits until the resource is listed.
        """
        is_new, self._request = request != self._request, request
        if is_new and request != self._record.request and not self._claimed:
            self.due = min(self.due, _now())

    async def claim(self, request: str) -> int:
        """Claim the id of an audit that begins now; 0 if none should begin.

        Raises:
            BusError: it could not be claimed.
        """
        if self.watcher.checkpoint() is None:
            # Not listed yet, or in doubt: the result of an audit would be meaningless.
            self.due = _now() + min(_NOT_SYNCED, self._settings.audit_longest).total_seconds()
            return 0
        if not self._claimed:
            claimed = max(now_ms(), self._record.id + 1)
            record = _Record(claimed, objects=self._record.objects, request=request)
            if not await self._write(record):
                await self.read(request)  # W15: a peer replica has begun
                return 0
            self._claimed = claimed
        return self._claimed

    async def renew(self) -> None:
        """Report now and then that our audit is running; a large one takes long.

        Raises:
            AuditAbandoned: a peer replica has begun one, so ours is of no use.
            BusError: it may not have been written.
        """
        now = now_ms()
        if now - self._record.active_at < self._timing.audit_renewed.total_seconds() * 1000:
            return
        if not await self._write(msgspec.structs.replace(self._record, renewed=now)):
            self._claimed = 0
            raise AuditAbandoned("another replica has begun one")

    async def complete(self, objects: int, request: str) -> None:
        """Record that the audit is published.

        Raises:
            BusError: it may not be recorded; then the audit is repeated.
        """
        self._backoff = ApiBackoff(self._settings.backoff)
        self.sizes.listed()
        done = msgspec.structs.replace(self._record, complete=True, objects=objects)
        is_written = await self._write(done)
        self._claimed = 0
        if is_written:
            self.due = _now() + self._pause(request)
        else:
            await self.read(request)

    def fail(self, error: FleetbusError) -> timedelta:
        """Schedule a retry of an abandoned audit; returns the pause before it."""
        if isinstance(error, Gone):
            self.sizes.expired()
        if isinstance(error, KubeError) and error.status in _REFUSALS:
            self.accept = JSON
        pause = self._backoff.delay(error)
        if isinstance(error, AuditAbandoned):
            pause = max(pause, self._interval)  # such a server returns no better list soon
        self.due = _now() + pause.total_seconds()
        return pause

    # --- schedule -----------------------------------------------------------------------------

    def _pause(self, request: str) -> float:
        """Return the seconds until the next one, spread randomly, at most the interval."""
        record, settings = self._record, self._settings
        passed, silent = (max(now_ms() - at, 0) / 1000 for at in (record.id, record.active_at))
        until_taken_over = self._timing.audit_taken_over.total_seconds() - silent
        is_running = record.id and not record.complete and until_taken_over > 0
        if request != record.request and not is_running:
            return 0
        if not settings.audit_shortest:
            return max(until_taken_over, 0) if record.id and not record.complete else float("inf")
        seconds = self._interval.total_seconds()
        if not record.id:
            return seconds * random.random()  # noqa: S311 -- spreads load
        pause = seconds * random.uniform(0.8, 1) - passed  # noqa: S311 -- spreads load
        if not record.complete:
            pause = min(pause, until_taken_over)
        return max(pause, 0)

    @property
    def _interval(self) -> timedelta:
        objects = max(self._record.objects, self.watcher.objects)
        return interval(objects, self._settings.audit_shortest, self._settings.audit_longest)

    async def _read(self) -> None:
        entry = await self._kv.get(self._key)
        self._record, self._revision = _NEVER, entry.revision if entry is not None else 0
        with suppress(*DECODE_ERRORS):
            self._record = _decoder.decode(entry.value) if entry is not None else _NEVER

    async def _write(self, record: _Record) -> bool:
        """Write by compare-and-set; False if a peer replica was first."""
        value = msgspec.json.encode(record)
        revision = await self._kv.update(self._key, value, self._revision)
        if revision is None:
            return False
        self._record, self._revision = record, revision
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
