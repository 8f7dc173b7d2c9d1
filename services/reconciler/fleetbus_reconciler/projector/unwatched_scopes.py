"""Drops from the snapshot what is not watched any more: as unwatched, not as deleted (rule P6).

Watchers report in each heartbeat what they are configured to watch. A scope is dropped when a live
watcher has reported for some time that it does not watch it, and no watcher has reported in that
time that it does. So nothing is dropped while a watcher is down or has no configuration yet, and of
two replicas with different configurations, as in a rolling update, both keep what they watch.

The configuration `*` covers types that do not exist any more. So a scope that was never listed, and
has no rows, is forgotten when no heartbeat reports it any more: a watcher tries, in vain, to list a
removed type as long as one of several API servers still serves it.

The check of all heartbeats of a cluster reads them from the stream, which holds the last one of
every replica, and only after this process has received one that lacks something: with several
projectors each receives a part of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self, TypeVar

import structlog
from prometheus_client import Counter
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.stream_reads import last_messages
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.spec import DENIED
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Heartbeat, WatchSet
from fleetbus_proto.subjects import STREAM, check_cluster
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.for_each import for_each
from fleetbus_reconciler.projector.sweeper import Sweeper

log = structlog.get_logger()

UNWATCHED: Final = Counter(
    "fleetbus_unwatched_objects_total",
    "Objects that were dropped from the snapshot because they are not watched any more.",
    ["cluster"],
)
_CHECKS: Final = 6
"""In the time that a scope must be unwatched."""
_RETRY: Final = timedelta(seconds=1)
_LISTED: Final = "watching"
"""The state of a scope in a heartbeat once its list is complete."""

T = TypeVar("T")
_Place = tuple[str, str]
"""The key of a resource, and the hash of a scope."""


@dataclass(frozen=True, slots=True)
class _Watching:
    """The configuration that one watcher reports; a watch set of None is a doubt."""

    watch_set: WatchSet | None
    places: frozenset[_Place]
    """Places that the watch set does not cover: none of `*`, so that many clusters cost little."""
    denied: frozenset[_Place] = frozenset()
    """Places in its configuration that it never watches, whatever else it may (rule S1)."""
    unlisted: frozenset[_Place] = frozenset()
    """Places that it reports and has not listed yet."""

    @classmethod
    def of(cls, heartbeat: Heartbeat) -> Self:
        watch_set = heartbeat.watch_set
        if watch_set is None:
            return cls(None, frozenset())
        reported = heartbeat.resources
        denied = frozenset((s.resource_key, s.scope) for s in reported if s.reason == DENIED)
        places = {(s.resource_key, s.scope) for s in reported} - denied
        uncovered = frozenset(p for p in places if not watch_set.may_hold(*p))
        unlisted = frozenset((s.resource_key, s.scope) for s in reported if s.state != _LISTED)
        return cls(watch_set, uncovered, denied, unlisted)

    def may_hold(self, place: _Place) -> bool:
        """Whether it watches this place, or may do so as far as it reports."""
        return self.watch_set is None or place in self.places or self.watch_set.may_hold(*place)


class UnwatchedScopes:
    """Finds and drops scopes that no watcher watches.

    Args:
        bus: to read the heartbeats.
        reader: the snapshot.
        writer: the snapshot.
        state: keeps the records.
        sweeper: may hold deletions of such a scope.
        after: how long a scope must be unwatched.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        state: FleetState,
        sweeper: Sweeper,
        after: timedelta,
    ) -> None:
        self._bus = bus
        self._reader = reader
        self._writer = writer
        self._state = state
        self._sweeper = sweeper
        self._after = after.total_seconds()
        # The last heartbeat of each replica that this process received, and when.
        self._received: dict[str, dict[str, tuple[_Watching, float]]] = {}
        # Since when some replica is known not to watch it.
        self._since: dict[tuple[str, _Place], float] = {}

    def receive(self, heartbeat: Heartbeat) -> None:
        """Note what a watcher reports that it watches."""
        replicas = self._received.setdefault(heartbeat.cluster, {})
        replicas[heartbeat.replica] = (_Watching.of(heartbeat), time.monotonic())

    async def run(self) -> None:
        """Drop until cancelled."""
        while True:
            await asyncio.sleep(self._after / _CHECKS)
            try:
                fleet = await self._reader.available_clusters()
                names = [record.name for record in fleet.records]
                await for_each(names, self._check)
                if not fleet.away:
                    self._forget_gone(set(names))
            except (RedisError, BusError, StoreEmpty) as e:
                log.warning("unwatched_scopes_not_dropped", error=str(e) or type(e).__name__)
                await asyncio.sleep(_RETRY.total_seconds())

    async def _check(self, cluster: str) -> None:
        replicas = self._received.get(cluster, {})
        oldest = time.monotonic() - 2 * self._after
        for replica in [name for name, (_, at) in replicas.items() if at < oldest]:
            del replicas[replica]
        if not replicas:
            return
        records = {record.key: record for record in await self._reader.resources(cluster)}
        stored = await self._writer.removal.read_scopes(cluster)
        now = time.monotonic()  # not before: what comes while we read must not look older
        reported = [watching for watching, _ in replicas.values()]
        declared = {(key, scope) for key, record in records.items() for scope in record.scopes}
        idle = {
            place for place in declared - stored if _is_idle(place, records[place[0]], reported)
        }
        scopes = (stored | declared) - idle
        lacked = {place for place in scopes if not all(each.may_hold(place) for each in reported)}
        never_listed = {p for p in declared - stored - idle if not records[p[0]].scopes[p[1]].epoch}
        unreported = never_listed - lacked - {p for each in reported for p in each.unlisted}
        overdue = self._overdue(cluster, lacked | unreported, now)
        due = lacked & overdue
        live = await self._live(cluster) if overdue else []
        for place in due:
            # A watcher without a definite watch set keeps everything.
            is_unwatched = live and not any(watching.may_hold(place) for watching, _ in live)
            if is_unwatched and not _is_awaited(records.get(place[0]), due | idle):
                await self._drop(cluster, place)
        for place in unreported & overdue:
            if live and not any(place in places for _, places in live):
                await self._forget(cluster, place)

    def _overdue(self, cluster: str, places: AbstractSet[_Place], now: float) -> set[_Place]:
        """Those that have been so for long enough; the others are noted, or not any more."""
        self._since = {
            key: at for key, at in self._since.items() if key[0] != cluster or key[1] in places
        }
        return {
            place
            for place in places
            if now - self._since.setdefault((cluster, place), now) >= self._after
        }

    def _forget_gone(self, fleet: AbstractSet[str]) -> None:
        for name in self._received.keys() - fleet:
            del self._received[name]
            with suppress(KeyError):
                UNWATCHED.remove(name)
        self._since = {key: at for key, at in self._since.items() if key[0] in fleet}

    async def _live(self, cluster: str) -> list[tuple[_Watching, frozenset[_Place]]]:
        """The last report of every live replica, as the stream holds it, and all its places."""
        subject = f"fleetbus.status.{check_cluster(cluster)}.>"
        reports: list[tuple[datetime, tuple[_Watching, frozenset[_Place]]]] = []
        for message in await last_messages(self._bus, STREAM, [subject]):
            try:
                beat = admit(message.subject, message.headers, message.body, now_ms=now_ms())
            except MalformedMessage:
                continue  # logged and counted where it was consumed
            if isinstance(beat, Heartbeat):
                places = frozenset((s.resource_key, s.scope) for s in beat.resources)
                reports.append((message.stored_at, (_Watching.of(beat), places)))
        return only_live(reports, datetime.now(UTC), timedelta(seconds=self._after))

    async def _forget(self, cluster: str, place: _Place) -> None:
        """Forget the record alone: a list that has just begun may bring rows."""
        resource, scope = place
        await self._state.forget_scope(cluster, resource, scope)
        self._since.pop((cluster, place), None)
        log.info("unlisted_scope_forgotten", cluster=cluster, resource=resource, scope=scope)

    async def _drop(self, cluster: str, place: _Place) -> None:
        resource, scope = place
        # The record first: dropped rows must not look like deleted objects (rule R1).
        await self._state.forget_scope(cluster, resource, scope)
        rows = await self._writer.removal.drop_scope(cluster, resource, scope)
        # Not before: the held rows must be gone when the hold ends.
        self._sweeper.forget_scope(cluster, resource, scope)
        self._since.pop((cluster, place), None)
        UNWATCHED.labels(cluster).inc(rows)
        log.info("scope_unwatched", cluster=cluster, resource=resource, scope=scope, rows=rows)


def only_live(reported: Sequence[tuple[datetime, T]], now: datetime, within: timedelta) -> list[T]:
    """Keep the reports that came within this time of the newest one; none if all are old.

    Times of the stream are compared with each other: were its clock behind ours, a watcher that
    reports seldom would count as dead beside one that reports often.
    """
    newest = max((at for at, _ in reported), default=None)
    if newest is None or newest < now - within:
        return []
    return [report for at, report in reported if at >= newest - within]


def _is_idle(place: _Place, record: ResourceRecord, reported: Sequence[_Watching]) -> bool:
    """Whether only heartbeats name it: it is never watched, and there is nothing to drop."""
    if record.scopes[place[1]].epoch or any(each.may_hold(place) for each in reported):
        return False
    return any(place in each.denied for each in reported)


def _is_awaited(record: ResourceRecord | None, due: AbstractSet[_Place]) -> bool:
    """Whether another scope has no list yet; it may be a wider one, and hold the same objects."""
    if record is None:
        return False
    others = [state for scope, state in record.scopes.items() if (record.key, scope) not in due]
    return any(not state.epoch for state in others)
