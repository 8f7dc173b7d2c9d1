"""Keeps the objects of the last moment, as events brought them, for the runs that they wake.

Most runs begin by reading the object that woke them, a moment after this process has enqueued them
for it. The snapshot had that state then, and a newer one will wake the request again, unless an
earlier run has read it: such a run takes the trigger away, and this with it (rule P10). So the
first read costs no call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetbus.run.current import ObjectRef, Version
from fleetbus.snapshot.applied_here import STANDING_FOR
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from fleetbus_proto.events import Event

KEPT: Final = timedelta(seconds=1) - STANDING_FOR
"""A run that begins later reads the snapshot: changes that wake nobody may have come meanwhile."""
MAX_BYTES: Final = 4 * 1024 * 1024


class _Kept(NamedTuple):
    version: Version
    body: bytes
    at: float


class RecentEvents:
    """Objects of one resource, each at the version of its last event.

    Args:
        resource: the resource key; empty to keep nothing.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._kept: dict[ObjectRef, _Kept] = {}
        self._bytes = 0

    def note(self, events: Iterable[Event]) -> None:
        """Keep the objects of events that are about to be enqueued.

        Args:
            events: states that the snapshot has now. One that was delivered again may be older.
        """
        now = time.monotonic()
        for event in events:
            if event.resource_key != self._resource:
                continue
            ref = ObjectRef(event.cluster, event.resource_key, event.namespace, event.name)
            self._forget(ref)
            if event.verb is not Verb.DELETED and event.object and not event.degraded:
                version = (event.incarnation.number, event.resource_version)
                self._kept[ref] = _Kept(version, event.object, now)
                self._bytes += len(event.object)
        self._expire(now - KEPT.total_seconds())

    def take(self, ref: ObjectRef, version: Version) -> bytes:
        """Return an object's JSON if it was kept at this version; it is forgotten then."""
        entry = self._kept.get(ref)
        if entry is None or entry.version != version:
            return b""
        self._forget(ref)
        return entry.body if entry.at > time.monotonic() - KEPT.total_seconds() else b""

    def _forget(self, ref: ObjectRef) -> None:
        if entry := self._kept.pop(ref, None):
            self._bytes -= len(entry.body)

    def _expire(self, before: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest].at > before and self._bytes <= MAX_BYTES:
                return
            self._forget(oldest)
