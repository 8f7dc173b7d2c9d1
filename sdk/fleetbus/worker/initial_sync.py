"""Enqueues what is already known: for a new durable, store or code, or a changed cluster.

A change that came before the durable existed is in no message of it, so binding the durable comes
first and the full enqueue second (rule P12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, cast

import structlog
from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.durables import BoundDurable, consumer_info, report_synced
from fleetbus.bus.replay import replay_deletions
from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.controller.fingerprint import fingerprint
from fleetbus.errors import BusError, FleetbusError
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.matching import Reason
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus.snapshot.offsets.checkpoint_store import claimed
from fleetbus.worker.connections import Connections
from fleetbus.worker.unsynced import UnsyncedResources
from fleetbus.worker.watch_check import WatchCheck
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority
from fleetbus_proto.events import Event
from fleetbus_proto.keys import queue as queue_key
from fleetbus_proto.keys import queue_checkpoint, queue_replay_claim

log = structlog.get_logger()

CHECK_EVERY: Final = timedelta(seconds=2)
_CHECK_EVERY_AT_FIRST: Final = timedelta(milliseconds=100)
"""Until the first sync is done: the process is not ready before."""
FIRST_RESYNC: Final = timedelta(seconds=30)
"""The pause before a cluster whose objects could not be enqueued is tried again."""
_LONGEST_RESYNC: Final = timedelta(seconds=1000)
_TIDY_EVERY: Final = timedelta(seconds=60)
"""Interval at which the record is searched for clusters that left."""
_RECENT: Final = timedelta(seconds=60)
"""Maximum rollback of a store; what a changed cluster enqueued is on no stream."""


class SyncedElsewhere(BusError):
    """Another process of this controller replays the deletions for all of them (rule P12)."""


class PendingResyncs:
    """The clusters for which user code failed; each is enqueued again, with back-off."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._pauses: dict[str, Pauses] = {}

    def add(self, cluster: str) -> None:
        """Enqueue a cluster again after a while."""
        if cluster not in self._due:
            pauses = self._pauses.setdefault(cluster, Pauses(FIRST_RESYNC, _LONGEST_RESYNC))
            self._due[cluster] = time.monotonic() + pauses.next().total_seconds()

    def take_due(self) -> list[str]:
        """The clusters to enqueue now; one that fails again is added again."""
        now = time.monotonic()
        due = [cluster for cluster, at in self._due.items() if at <= now]
        for cluster in due:
            del self._due[cluster]
        return due

    def done(self, cluster: str) -> None:
        """Start with the short delay the next time, unless it has failed again meanwhile."""
        if cluster not in self._due:
            self._pauses.pop(cluster, None)

    def drop(self, cluster: str) -> None:
        """Forget a cluster that left."""
        self._due.pop(cluster, None)
        self._pauses.pop(cluster, None)


class InitialSync:
    """The full enqueues of one controller in this process.

    Args:
        controller: whose.
        connections: bus, store and fleet.
        durable: the one that this process is bound to.
        intake: turns events into requests.
        full: enqueues everything that is known.
        unsynced: the requests that wait for resources to be synced.
        resyncs: the clusters for which user code failed.
    """

    def __init__(
        self,
        controller: Controller,
        connections: Connections,
        *,
        durable: BoundDurable,
        intake: Intake,
        full: FullEnqueue,
        unsynced: UnsyncedResources,
        resyncs: PendingResyncs,
    ) -> None:
        self._controller = controller
        self._fleet_key = queue_key(controller.name, "fleet")
        self._has_mapped = not all(watch.is_identity for watch in controller.watches)
        self._connections = connections
        self._bound = durable
        self._intake = intake
        self._full = full
        self._unsynced = unsynced
        self._resyncs = resyncs
        self._watch_check = WatchCheck(controller, connections)
        self._log_once = LogOnce()
        self._reported = ""
        """The durable that was reported to the projector as synced."""
        self._is_synced = False
        self._is_code_known = False
        self._tidy_at = 0.0
        self._changed: set[str] = set()
        """Clusters that joined or changed and are not enqueued yet."""
        self._to_map: set[str] = set()
        """Those of them whose objects may name a cluster that has joined."""
        self._enqueued: dict[str, float] = {}
        """When each changed cluster was enqueued."""
        self._seen: Mapping[str, ClusterInfo] = {}
        self._is_fleet_compared = False
        """Whether it was compared with the fleet that the last process has stored."""
        self._wake = asyncio.Event()
        durable.on_change(self._rebind)

    @property
    def is_synced(self) -> bool:
        """Whether all that was known when this process bound its durable is enqueued."""
        return self._is_synced

    def _rebind(self) -> None:
        if self._bound.name:
            self._reported = ""
            self._wake.set()

    def note_fleet(self, now: Mapping[str, ClusterInfo]) -> set[str]:
        """Enqueue the clusters that joined or changed; returns the names of those that left.

        Args:
            now: all clusters, by name.
        """
        self._changed |= {name for name, info in now.items() if self._seen.get(name) != info}
        has_joined = bool(self._seen) and bool(now.keys() - self._seen.keys())
        left = self._seen.keys() - now.keys()
        for name in left:
            self._changed.discard(name)
            self._resyncs.drop(name)
            self._tidy_at = 0.0
        self._seen = now
        if has_joined:
            self._map_again()
        self._wake.set()
        return left

    async def enqueue_recent(self) -> None:
        """Enqueue changed clusters again: a store that went back may have lost their requests."""
        since = time.monotonic() - _RECENT.total_seconds()
        self._enqueued = {name: at for name, at in self._enqueued.items() if at > since}
        self._changed |= self._enqueued.keys()
        self._wake.set()

    async def run(self) -> None:
        """Enqueue whatever is due, until cancelled."""
        while True:
            try:
                await self._sync()
                self._log_once.reset()
            except (RedisError, FleetbusError, WorkqueueError) as e:
                # NATS or Redis is away, or the store was emptied meanwhile: the next turn does it.
                self._log_failure(e)
            pause = CHECK_EVERY if self._is_synced else _CHECK_EVERY_AT_FIRST
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._wake.wait()
            self._wake.clear()

    def _log_failure(self, error: RedisError | FleetbusError | WorkqueueError) -> None:
        name, reason = self._controller.name, str(error)
        if not self._log_once.should_log(reason):
            return
        if isinstance(error, SyncedElsewhere):
            log.info("initial_sync_by_another_process", controller=name, reason=reason)
        else:
            log.warning("initial_sync_failed", controller=name, error=reason)

    async def _sync(self) -> None:
        durable = self._bound.name
        token = await self._token(durable) if durable else ""
        if not token:
            return  # not bound, or there is no store yet: binding comes first (P12)
        await self._enqueue_all(token)
        await self._enqueue_for_new_code()
        self._is_synced = True
        await self._watch_check.run()
        if self._reported != durable:
            await report_synced(self._connections.kv, self._controller.name, durable)
            self._reported = durable
        await self._find_joined()
        await self._enqueue_changed()
        await self._enqueue_synced()
        fleet = sorted(self._seen)  # all of it is mapped; who joins from here on is not
        if time.monotonic() >= self._tidy_at:
            await self._full.tidy()
            await self._unsynced.forget([])
            await self._store_fleet(fleet)
            self._tidy_at = time.monotonic() + _TIDY_EVERY.total_seconds()

    async def _enqueue_synced(self) -> None:
        """Enqueue the requests whose runs used resources that are synced by now."""
        synced = await self._unsynced.take_synced()
        if synced:
            await self._intake.enqueue([Add(request, Priority.INITIAL) for request in synced])
            await self._unsynced.forget([note for notes in synced.values() for note in notes])

    async def _enqueue_changed(self) -> None:
        self._changed.update(self._resyncs.take_due())
        while self._changed:
            cluster = self._changed.pop()
            try:
                reason = Reason.GAP if cluster in self._to_map else Reason.RESYNC
                await self._full.run(cluster=cluster, reason=reason)
                self._to_map.discard(cluster)
            except BaseException:
                self._changed.add(cluster)
                raise
            self._enqueued[cluster] = time.monotonic()
            self._resyncs.done(cluster)

    def _map_again(self) -> None:
        """Enqueue all clusters: requests for one that has joined were dropped before (rule Q9)."""
        if self._has_mapped:
            self._changed |= self._seen.keys()
            self._to_map |= self._seen.keys()

    async def _find_joined(self) -> None:
        """Find the clusters that joined while no process of this controller ran."""
        if self._is_fleet_compared or not self._seen:
            return
        stored = cast("bytes | None", await self._connections.redis.get(self._fleet_key))
        # Without a record there was no fleet before this one: the full enqueue has covered it.
        if stored is not None and self._seen.keys() - set(stored.decode().split()):
            self._map_again()
        self._is_fleet_compared = True
        self._tidy_at = 0.0

    async def _store_fleet(self, names: Sequence[str]) -> None:
        if self._has_mapped and self._is_fleet_compared:
            await self._connections.redis.set(self._fleet_key, " ".join(names))

    async def _enqueue_all(self, token: str) -> None:
        key = queue_key(self._controller.name, "initial-sync")
        stored = cast("bytes | None", await self._connections.redis.get(key))
        if stored == token.encode():
            return
        log.info("full_enqueue", controller=self._controller.name)
        covered, self._changed = self._changed, set()
        try:
            await self._full.run()
            # Without the breaks the token names store and durable: are they those of the last time?
            if stored is None or stored.rpartition(b" ")[0] != token.encode().rpartition(b" ")[0]:
                # The queue may have lost deletions, or they came before this durable. No list has
                # them: a swept object leaves no tombstone.
                await self._replay_deletions()
            await self._connections.redis.set(key, token)
        except BaseException:
            self._changed |= covered
            raise

    async def _replay_deletions(self) -> None:
        name = self._controller.name
        async with claimed(self._connections.redis, queue_replay_claim(name)) as is_ours:
            if not is_ours:
                raise SyncedElsewhere("another process of this controller reads the stream again")
            await replay_deletions(
                self._connections.bus, name, self._bound.filters, self._enqueue_again
            )

    async def _enqueue_for_new_code(self) -> None:
        """Enqueue everything if other code than ours was the last to run; checked once per process.

        While two releases run side by side, each start of a process with other code enqueues once.
        """
        if self._is_code_known:
            return
        key = queue_key(self._controller.name, "code")
        code = fingerprint(self._controller)
        stored = cast("bytes | None", await self._connections.redis.get(key))
        if stored != code.encode():
            if stored is not None:
                log.info("code_changed", controller=self._controller.name)
                await self._full.run(reason=Reason.NEW_CODE)
            await self._connections.redis.set(key, code)
        self._is_code_known = True

    async def _enqueue_again(self, deliveries: Sequence[Delivery]) -> None:
        events = [d.message for d in deliveries if isinstance(d.message, Event)]
        await self._intake.take(events, reason=Reason.GAP)

    async def _token(self, durable: str) -> str:
        """Identify what the last full enqueue must have been made for; empty while unknown."""
        info = await consumer_info(self._connections.bus, durable)
        generation = await self._connections.reader.generation()
        if info is None or generation is None:
            return ""
        # `breaks` counts the times that messages left the stream unread (rule B17), `born` changes
        # when the checkpoint had to begin anew (rule P11): both need a full enqueue.
        answer = await self._connections.redis.hmget(
            queue_checkpoint(self._controller.name, durable), ["low", "born", "breaks"]
        )
        low, born, breaks = cast("list[bytes | None]", answer)
        if low is None:
            return ""
        parts = (generation, durable, info["created"], ",".join(self._bound.filters))
        return " ".join([*parts, (born or b"-").decode(), str(int(breaks or 0))])
