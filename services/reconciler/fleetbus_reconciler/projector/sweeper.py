"""Publishes deletions of the objects that a complete list lacks (rules P6, P7).

The snapshot does not change here: the deletions travel over the bus like any other event, so that
every consumer gets them, and a crash in the middle repeats harmlessly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import msgspec
import structlog
from prometheus_client import Counter, Gauge

from fleetbus.bus.acks import Ack
from fleetbus.bus.window import Window
from fleetbus.errors import BusError
from fleetbus.process.clock import utc_now
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.sweep import SweepCandidate
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_proto import codec, headers
from fleetbus_proto.events import OVERSIZED, Event
from fleetbus_proto.subjects import Verb, event_subject
from fleetbus_reconciler.fleet_status.fleet_state import FleetState, resource_of
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.projector.tombstones import TombstoneCollector

log = structlog.get_logger()

_BATCH: Final = 200
_AT_ONCE: Final = 8
"""Sweeps; each is some ten round trips to the store, and a fleet that starts ends many lists."""
_CRDS: Final = "apiextensions.k8s.io/customresourcedefinitions"
_HEADERS: Final = 4096
"""More bytes than the headers of any event have."""

SWEPT: Final = Counter(
    "fleetbus_swept_objects_total",
    "Objects that a new list lacked, and whose deletion was published.",
    ["cluster"],
)
HELD: Final = Gauge(
    "fleetbus_held_sweeps", "Sweeps that the deletion fuse holds until a second list confirms them."
)


@dataclass(frozen=True, slots=True)
class SweepFuse:
    """Limits beyond which a sweep needs a second list that confirms it (rule P7)."""

    objects: int
    percent: int
    wait: timedelta

    def trips(self, *, gone: int, known: int) -> bool:
        """Whether so many deletions among so many known objects need a second list."""
        if gone and gone == known:
            return True  # an empty list, however few objects were known
        return gone > self.objects and gone * 100 > known * self.percent

    def delay(self, *, known: int) -> timedelta:
        """Earliest start of the second list after the first."""
        return self.wait if known > self.objects else timedelta()


@dataclass(slots=True)
class _Hold:
    epoch: CompletedEpoch
    since: float
    delay: timedelta


_Key = tuple[str, str, str]
_Age = tuple[int, tuple[tuple[int, str], int]]


class Sweeper:
    """Sweeps completed epochs: those of different resources at once.

    Args:
        reader: the snapshot.
        writer: the snapshot.
        window: publishes the deletions.
        max_payload: the largest message that the bus accepts now.
        message_key: the secret of a cluster's message ids.
        state: records the outcome.
        resyncs: requests second lists.
        tombstones: notified of floors that have risen.
        fuse: limits one sweep.
        retry: the pause before a failed sweep is repeated.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        window: Window,
        max_payload: Callable[[], int],
        message_key: Callable[[str], Awaitable[bytes]],
        state: FleetState,
        resyncs: ResyncRequests,
        tombstones: TombstoneCollector,
        fuse: SweepFuse,
        retry: timedelta,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._window = window
        self._max_payload = max_payload
        self._message_key = message_key
        self._state = state
        self._resyncs = resyncs
        self._tombstones = tombstones
        self._fuse = fuse
        self._retry = retry
        self._waiting: asyncio.Queue[CompletedEpoch] = asyncio.Queue()
        self._queued: set[CompletedEpoch] = set()
        # Cluster and resource of each running sweep → epochs of the same, to be swept after it.
        self._running: dict[tuple[str, str], list[CompletedEpoch]] = {}
        self._holds: dict[_Key, _Hold] = {}
        self._log_once = LogOnce()
        # Epochs without a sweep at the last check, ours and those of other processes.
        self._pending: AbstractSet[CompletedEpoch] | None = None

    def add(self, completed: CompletedEpoch) -> None:
        """Sweep this epoch soon; repeats are harmless."""
        if completed not in self._queued:
            self._queued.add(completed)
            self._waiting.put_nowait(completed)

    def forget_scope(self, cluster: str, resource: str, scope: str) -> None:
        """Release the hold of a scope that is not watched any more."""
        self._release((cluster, resource, scope))

    def forget_cluster(self, cluster: str) -> None:
        """Release the holds of a cluster that left."""
        for key in [key for key in self._holds if key[0] == cluster]:
            self._release(key)
        with suppress(KeyError):
            SWEPT.remove(cluster)

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._run_one(), name=f"sweep {number}")

    async def _run_one(self) -> NoReturn:
        while True:
            completed = await self._waiting.get()
            self._queued.discard(completed)
            place = (completed.cluster, completed.resource_key)
            if place in self._running:
                self._running[place].append(completed)
                continue
            self._running[place] = []
            try:
                await self._sweep(completed)
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: the epoch stays pending
                log.warning("sweep_failed", cluster=completed.cluster, error=str(e))
                # Others need not wait: it may be the only one whose shard is away.
                loop = asyncio.get_running_loop()
                loop.call_later(self._retry.total_seconds(), self.add, completed)
            finally:
                for later in self._running.pop(place):
                    self.add(later)

    def take_over(self, pending: AbstractSet[CompletedEpoch]) -> None:
        """Sweep what no process has swept between two checks: its process died, or was stopped.

        The first check after a start takes all, as they may be our own.

        Args:
            pending: the epochs without a sweep, of all clusters.
        """
        for completed in pending if self._pending is None else pending & self._pending:
            if not self._is_held(completed):
                self.add(completed)
        self._pending = pending

    async def request_second_lists(self) -> None:
        """Request the list that releases or confirms a hold, once it may count (rule P7)."""
        for hold in list(self._holds.values()):
            if time.monotonic() - hold.since >= hold.delay.total_seconds():
                await self._request_newer(hold.epoch, "the deletion fuse needs a second list")

    async def _sweep(self, completed: CompletedEpoch) -> None:
        if completed.removed and await self._is_defined(completed):
            return  # it stays pending: the deletion of the CRD may still be on its way
        # Counted first, and read again for publishing: the last states need not fit in memory.
        gone = 0
        async for _ in self._writer.sweeps.find_candidates(completed):
            gone += 1
        if not completed.removed and not await self._may_sweep(completed, gone):
            return
        await self._publish_all(completed)
        if completed.removed:
            await self._finish_removed_type(completed, gone)
            return
        # Before `finish_sweep`: a crash in between repeats the sweep instead of losing the record.
        await self._state.mark_synced(completed)
        await self._writer.sweeps.finish(completed)
        self._tombstones.note_risen_floor(completed.cluster, completed.resource_key)
        if gone:
            log.info(
                "epoch_swept",
                cluster=completed.cluster,
                resource=completed.resource_key,
                deleted=gone,
            )
            SWEPT.labels(completed.cluster).inc(gone)

    async def _is_defined(self, completed: CompletedEpoch) -> bool:
        """Whether the snapshot holds the CRD of a type that is reported as removed (rule W17)."""
        name = f"{completed.resource}.{completed.group}"
        versions = await self._reader.versions(completed.cluster, _CRDS, [("", name)])
        is_defined = any(version.is_live for version in versions.values())
        if is_defined and self._log_once.should_log(key=_key_of(completed)):
            log.warning("removed_type_has_a_crd", cluster=completed.cluster, crd=name)
        return is_defined

    async def _finish_removed_type(self, completed: CompletedEpoch, gone: int) -> None:
        """Forget a removed type; the watcher has looked twice, so no fuse holds this (rule W17).

        As long as there are rows the epoch stays pending, until its deletions have come back.
        """
        self._release(_key_of(completed))
        if gone:
            SWEPT.labels(completed.cluster).inc(gone)
            return
        if completed not in await self._writer.sweeps.find_pending(completed.cluster):
            return  # a newer epoch: the type is back
        place = (completed.cluster, completed.resource_key)
        await self._state.forget_scope(*place, completed.scope)
        await self._resyncs.withdraw(completed.cluster, resource_of(completed))
        await self._writer.sweeps.finish(completed)
        self._tombstones.note_risen_floor(*place)
        log.info("removed_type_swept", cluster=completed.cluster, resource=completed.resource_key)

    async def _may_sweep(self, completed: CompletedEpoch, gone: int) -> bool:
        # After the count: objects that a newer list has brought since then made it too small.
        doubt = await self._writer.sweeps.read_state(completed)
        if doubt.is_held:
            await self._keep_hold(completed, gone)
            return False
        if gone and doubt.is_superseded:
            # The newer one decides; should it never end, the requested one is newer still.
            await self._request_newer(completed, "a list lacks objects, and a newer one has begun")
            return False
        return await self._is_believed(completed, gone)

    async def _keep_hold(self, completed: CompletedEpoch, gone: int) -> None:
        """Take over a hold, perhaps of a process that has ended; its time starts again."""
        if _key_of(completed) not in self._holds:
            await self._hold(completed, gone, await self._count(completed))
        await self.request_second_lists()

    async def _hold(self, completed: CompletedEpoch, gone: int, objects: int) -> None:
        key = _key_of(completed)
        hold = self._holds.get(key)
        if hold is None:
            delay = self._fuse.delay(known=objects)
            self._holds[key] = _Hold(completed, time.monotonic(), delay)
            HELD.set(len(self._holds))
            log.error("sweep_held", cluster=completed.cluster, resource=completed.resource_key)
        elif _age_of(completed) > _age_of(hold.epoch):
            # Too early to count, but the requested list must be newer than this one, too.
            hold.epoch = completed
        reason = f"a list lacks {gone} of {objects} objects: deletions held for a second list"
        await self._state.mark_degraded(completed, reason)

    async def _request_newer(self, completed: CompletedEpoch, reason: str) -> None:
        await self._resyncs.request(
            completed.cluster, resource_of(completed), reason, newer_than=completed.rank.id
        )

    async def _is_believed(self, completed: CompletedEpoch, gone: int) -> bool:
        objects = await self._count(completed)
        key = _key_of(completed)
        hold = self._holds.get(key)
        if not self._fuse.trips(gone=gone, known=objects):
            self._release(key)
            return True
        if hold is not None and self._agrees(hold, completed):
            log.warning("sweep_confirmed", cluster=completed.cluster, deletions=gone, known=objects)
            self._release(key)
            return True
        await self._writer.sweeps.hold(completed)
        await self._hold(completed, gone, objects)
        await self.request_second_lists()
        return False

    async def _count(self, completed: CompletedEpoch) -> int:
        """The objects that the list could hold: only those of its scope."""
        if completed.scope:
            return await self._writer.sweeps.count_scope(completed)
        return await self._reader.count(completed.cluster, completed.resource_key)

    def _agrees(self, hold: _Hold, completed: CompletedEpoch) -> bool:
        waited = time.monotonic() - hold.since
        is_newer = _age_of(completed) > _age_of(hold.epoch)
        return is_newer and waited >= hold.delay.total_seconds()

    def _is_held(self, completed: CompletedEpoch) -> bool:
        hold = self._holds.get(_key_of(completed))
        return hold is not None and _age_of(completed) <= _age_of(hold.epoch)

    def _release(self, key: _Key) -> None:
        self._holds.pop(key, None)
        HELD.set(len(self._holds))

    async def _publish_all(self, completed: CompletedEpoch) -> None:
        batch: list[SweepCandidate] = []
        async for candidate in self._writer.sweeps.find_candidates(completed):
            batch.append(candidate)
            if len(batch) >= _BATCH:
                await self._publish(completed, batch)
                batch = []
        await self._publish(completed, batch)

    async def _publish(
        self, completed: CompletedEpoch, candidates: Sequence[SweepCandidate]
    ) -> None:
        if not candidates:
            return
        key = await self._message_key(completed.cluster)
        sent = [self._send(_deletion(completed, candidate), key) for candidate in candidates]
        for ack in await asyncio.gather(*sent):
            if ack.error is not None:
                raise BusError(f"a deletion was not stored: {ack.error.description}")

    async def _send(self, event: Event, key: bytes) -> Ack:
        subject = event_subject(
            event.cluster, event.group, event.resource, event.namespace, event.name, event.verb
        )
        body = codec.encode(event)
        if len(body) + _HEADERS > self._max_payload():
            # The object came in a smaller envelope; the deletion matters more than its last state
            # (rule B11).
            event = msgspec.structs.replace(event, object=None, degraded=OVERSIZED)
            body = codec.encode(event)
        return await self._window.send(subject, body, headers.build(event, key))


def _key_of(completed: CompletedEpoch) -> _Key:
    return (completed.cluster, completed.resource_key, completed.scope)


def _age_of(completed: CompletedEpoch) -> _Age:
    """Ranks compare within one incarnation: a restored etcd has lower versions (rule P2)."""
    return (completed.incarnation.number, completed.rank.key)


def _deletion(completed: CompletedEpoch, candidate: SweepCandidate) -> Event:
    return Event(
        cluster=completed.cluster,
        incarnation=completed.incarnation,
        group=completed.group,
        version=completed.version,
        resource=completed.resource,
        kind=completed.kind,
        namespace=candidate.namespace,
        name=candidate.name,
        uid=candidate.uid,
        resource_version=completed.rank.resource_version,
        verb=Verb.DELETED,
        epoch=completed.rank,
        scope=completed.scope,
        observed_at=utc_now(),
        object=candidate.object,
        final_state_unknown=True,
    )
