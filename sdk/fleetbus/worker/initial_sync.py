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
from typing import Any, Final, NamedTuple, cast

import structlog
from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.reader_groups import BoundDurable, Origin, ReaderGroup, report_synced
from fleetbus.bus.replay import replay, replay_deletions
from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.controller.fingerprint import fingerprint
from fleetbus.errors import BusError, FleetbusError
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.matching import Reason
from fleetbus.intake.unsynced import UnsyncedResources
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.checkpoint_store import claimed
from fleetbus.worker.connections import Connections
from fleetbus.worker.watch_check import WatchCheck
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority
from fleetbus_proto.events import Event
from fleetbus_proto.keys import queue as queue_key
from fleetbus_proto.keys import queue_checkpoint, queue_replay_claim

log = structlog.get_logger()

CHECK_EVERY: Final = timedelta(seconds=2)
_CHECKPOINT_WITHIN: Final = timedelta(seconds=1.5)
"""By then the processes of the group before this one have written a checkpoint, if they live."""
_FIELDS: Final = ("stream", "low", "born", "breaks", "synced")
_CHECK_EVERY_AT_FIRST: Final = timedelta(milliseconds=100)
"""Until the first sync is done: the process is not ready before."""
FIRST_RESYNC: Final = timedelta(seconds=30)
"""The pause before a cluster whose objects could not be enqueued is tried again."""
_LONGEST_RESYNC: Final = timedelta(seconds=1000)
_REST_FACTOR: Final = 1
"""A controller that skips events again and again rests so many times as long as enqueueing all that
is known took."""
_TIDY_EVERY: Final = timedelta(seconds=60)
"""Interval at which the record is searched for clusters that left."""
_RECENT: Final = timedelta(seconds=60)
"""Maximum rollback of a store; what a changed cluster enqueued is on no stream."""


class SyncedElsewhere(BusError):
    """Another process of this controller replays the deletions for all of them (rule P12)."""


class NotHandledYet(BusError):
    """The processes of the group before this one have not written their last checkpoint."""


class _Checkpoint(NamedTuple):
    """The checkpoint of one durable of a controller, see `CheckpointStore`."""

    stream: str
    low: int
    born: str
    """Changes when the checkpoint had to begin anew (rule P11)."""
    breaks: int
    """Counts the times that messages left the stream unread (rule B17)."""
    synced: str
    """The token of the last full enqueue for it."""


class _Place(NamedTuple):
    """The place that a full enqueue is made for: another text needs the deletions again, too."""

    key: str
    generation: str
    stored: _Checkpoint
    text: str
    selection: str

    @property
    def synced(self) -> str:
        """The token of the last full enqueue."""
        return self.stored.synced

    @property
    def token(self) -> str:
        """The text, and what was selected."""
        return f"{self.text} {self.selection}"


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
        group: the controllers that are read for together.
        durable: the one that this process is bound to.
        states: of the stream and the durable.
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
        group: ReaderGroup,
        durable: BoundDurable,
        states: BusStates,
        intake: Intake,
        full: FullEnqueue,
        unsynced: UnsyncedResources,
        resyncs: PendingResyncs,
    ) -> None:
        self._controller = controller
        self._fleet_key = queue_key(controller.name, "fleet")
        self._has_mapped = not all(watch.is_identity for watch in controller.watches)
        self._connections = connections
        self._group = group
        self._selection = group.controllers[controller.name]
        self._bound = durable
        self._bound_at = 0.0
        self._states = states
        self._intake = intake
        self._full = full
        self._unsynced = unsynced
        self._resyncs = resyncs
        self._watch_check = WatchCheck(controller, connections)
        self._log_once = LogOnce()
        self._reported = ""
        """When the durable was created that was reported to the projector as synced."""
        self._is_synced = False
        self._is_code_known = False
        self._tidy_at = self._all_again_at = 0.0
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
            self._bound_at = time.monotonic()
            self._reported = ""
            self.wake()

    def wake(self) -> None:
        """Look soon for what is due."""
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
        elif isinstance(error, NotHandledYet):
            log.debug("initial_sync_waits", controller=name, reason=reason)
        else:
            log.warning("initial_sync_failed", controller=name, error=reason)

    async def _sync(self) -> None:
        durable, created = self._bound.name, self._bound.created
        place = await self._place(durable, created) if durable else None
        if place is None:
            return  # not bound, or there is no store yet: binding comes first (P12)
        await self._enqueue_all(place)
        await self._enqueue_for_new_code()
        self._is_synced = True
        await self._watch_check.run()
        if self._reported != created:
            name = self._controller.name
            await report_synced(self._connections.kv, self._group, name, created)
            self._reported = created
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
        held = cast("bytes | None", await self._connections.redis.get(self._fleet_key))
        # Without a record there was no fleet before this one: the full enqueue has covered it.
        if held is not None and self._seen.keys() - set(held.decode().split()):
            self._map_again()
        self._is_fleet_compared = True
        self._tidy_at = 0.0

    async def _store_fleet(self, names: Sequence[str]) -> None:
        if self._has_mapped and self._is_fleet_compared:
            await self._connections.redis.set(self._fleet_key, " ".join(names))

    async def _enqueue_all(self, place: _Place) -> None:
        if place.synced == place.token:
            return
        # Either what was enqueued was for another generation, durable or selection, or nothing was
        # for this durable: then the one before it may have handled all that this one does not.
        synced = place.synced or await self._synced_before(place)
        if synced != place.token:
            began = time.monotonic()
            if self._is_synced and began < self._all_again_at:
                return
            log.info("full_enqueue", controller=self._controller.name)
            covered, self._changed = self._changed, set()
            try:
                await self._full.run()
                if synced.rpartition(" ")[0] != place.text:
                    # The queue may have lost deletions, or they came before this durable. No list
                    # has them: a swept object leaves no tombstone.
                    await self._replay_deletions()
            except BaseException:
                self._changed |= covered
                raise
            now = time.monotonic()
            self._all_again_at = now + _REST_FACTOR * (now - began)
        await cast("Any", self._connections.redis.hset(place.key, "synced", place.token))

    async def _replay_deletions(self) -> None:
        name = self._controller.name
        async with claimed(self._connections.redis, queue_replay_claim(name)) as is_ours:
            if not is_ours:
                raise SyncedElsewhere("another process of this controller reads the stream again")
            filters = self._selection.filters
            await replay_deletions(self._connections.bus, name, filters, self._enqueue_again)

    async def _enqueue_for_new_code(self) -> None:
        """Enqueue everything if other code than ours was the last to run; checked once per process.

        While two releases run side by side, each start of a process with other code enqueues once.
        """
        if self._is_code_known:
            return
        key = queue_key(self._controller.name, "code")
        code = fingerprint(self._controller)
        held = cast("bytes | None", await self._connections.redis.get(key))
        if held != code.encode():
            if held is not None:
                log.info("code_changed", controller=self._controller.name)
                await self._full.run(reason=Reason.NEW_CODE)
            await self._connections.redis.set(key, code)
        self._is_code_known = True

    async def _enqueue_again(self, deliveries: Sequence[Delivery]) -> None:
        events = [d.message for d in deliveries if isinstance(d.message, Event)]
        await self._intake.take(events, reason=Reason.GAP)

    async def _place(self, durable: str, created: str) -> _Place | None:
        """Identify what the last full enqueue must have been made for; None while unknown."""
        key = queue_checkpoint(self._controller.name, durable)
        stored = await self._checkpoint(key)
        generation = await self._connections.reader.generation()
        if not created or generation is None or not stored.stream:
            return None
        parts = (generation, durable, created, ",".join(self._selection.filters), stored.born)
        repeats = self._bound.decided.repeats.get(self._controller.name, 0)
        selection = f"{self._selection.digest}/{stored.breaks}/{repeats}"
        return _Place(key, generation, stored, " ".join(parts), selection)

    async def _checkpoint(self, key: str) -> _Checkpoint:
        answer = cast("list[bytes | None]", await self._connections.redis.hmget(key, _FIELDS))
        stream, low, born, breaks, synced = (value.decode() if value else "" for value in answer)
        return _Checkpoint(stream, int(low or 0), born or "-", int(breaks or 0), synced)

    async def _synced_before(self, place: _Place) -> str:
        """Find what was enqueued for the durable that our controller had before, if that suffices.

        Returns:
            The token of this place if nothing is missing, one with another selection if everything
            has to be evaluated again, or an empty string.
        """
        name = self._controller.name
        origin = self._bound.decided.origins.get(name)
        state = await self._states.read(self._bound.name)
        # What left the stream before our first checkpoint would be missed by nobody.
        if origin is None or state is None or state.first > max(self._bound.decided.start, 1):
            return ""
        before = await self._checkpoint(queue_checkpoint(name, origin.durable))
        token = before.synced
        digest = _digest_of(token, origin, place.generation, before) if token else None
        if digest is None or before.stream != place.stored.stream:
            return ""
        is_due = time.monotonic() < self._bound_at + _CHECKPOINT_WITHIN.total_seconds()
        if before.low < origin.floor and is_due:
            raise NotHandledYet("the checkpoint of the durable before this one is due")
        # Without a token of ours a store that was set back may lack what we have acknowledged, too.
        ours = state.mark.floor if state.mark.floor >= self._bound.decided.start else 0
        if before.low < (handled := max(origin.floor, ours)):
            await self._replay(before.low + 1, handled)
        return f"{place.text} {digest}/{place.selection.partition('/')[2]}"

    async def _replay(self, first: int, last: int) -> None:
        """Take again what was acknowledged, perhaps to a store that has lost it since."""
        name = self._controller.name
        log.info("end_of_durable_replayed", controller=name, first=first, last=last)
        async with claimed(self._connections.redis, queue_replay_claim(name)) as is_ours:
            if not is_ours:
                raise SyncedElsewhere("another process of this controller reads the stream again")
            bus, filters = self._connections.bus, self._selection.filters
            await replay(bus, name, filters, self._take_again, first=first, last=last)

    async def _take_again(self, deliveries: Sequence[Delivery]) -> None:
        await self._intake.take([d.message for d in deliveries if isinstance(d.message, Event)])


def _digest_of(token: str, origin: Origin, generation: str, checkpoint: _Checkpoint) -> str | None:
    """The selection for which all was enqueued for a durable; None if that is incomplete."""
    stored_generation, durable, created, *middle, selection = token.split(" ")
    digest, breaks, _ = selection.split("/")
    is_whole = (
        (stored_generation, durable, created) == (generation, origin.durable, origin.created)
        and middle[-1] == checkpoint.born
        and breaks == str(checkpoint.breaks)
    )
    return digest if is_whole else None
