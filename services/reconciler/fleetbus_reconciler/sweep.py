"""Publish what a complete list proves to be gone (rules P6, P7).

The snapshot does not change here: the deletions travel over the bus like any other event, so that
every consumer gets them, and a crash in the middle repeats harmlessly.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.read import SnapshotReader
from fleetbus.snapshot.sweep import SweepCandidate
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.window import Ack, Window
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb, event_subject
from fleetbus_reconciler.fleet_state import FleetState, resource_of

log = structlog.get_logger()

SWEPT: Final = Counter(
    "fleetbus_swept_objects_total", "Deletions found by a relist and published.", ["cluster"]
)
HELD: Final = Gauge(
    "fleetbus_held_sweeps", "Sweeps held by the deletion fuse, waiting for a second list."
)


@dataclass(frozen=True, slots=True)
class Fuse:
    """When a sweep is too large to believe the first list (rule P7)."""

    objects: int
    percent: int
    wait: timedelta

    def trips(self, *, gone: int, known: int) -> bool:
        """Whether so many deletions of so many known objects need a second look."""
        if gone and gone == known:
            return True  # an empty list, however few there were
        return gone > self.objects and gone * 100 > known * self.percent

    def delay(self, *, known: int) -> timedelta:
        """How long after the first list the second must be made."""
        return self.wait if known > self.objects else timedelta()


@dataclass(frozen=True, slots=True)
class _Hold:
    epoch: CompletedEpoch
    since: float
    delay: timedelta


class Sweeper:
    """Takes completed epochs, one after the other.

    Args:
        reader: the snapshot.
        writer: the snapshot.
        window: publishes the deletions.
        state: told of the outcome.
        fuse: what is too much at once.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        window: Window,
        state: FleetState,
        fuse: Fuse,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._window = window
        self._state = state
        self._fuse = fuse
        self._waiting: asyncio.Queue[CompletedEpoch] = asyncio.Queue()
        self._holds: dict[tuple[str, str, str], _Hold] = {}

    def add(self, completed: CompletedEpoch) -> None:
        """Sweep this epoch soon; repeats are harmless."""
        self._waiting.put_nowait(completed)

    async def run(self) -> None:
        """Sweep until cancelled; first what an earlier process left unfinished."""
        for cluster in await self._reader.clusters():
            for completed in await self._writer.pending_sweeps(cluster.name):
                self.add(completed)
        while True:
            completed = await self._waiting.get()
            try:
                await self._sweep(completed)
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: the epoch stays pending
                log.warning("sweep_failed", cluster=completed.cluster, error=str(e))
                await asyncio.sleep(1)
                self.add(completed)

    async def ask_for_second_lists(self) -> None:
        """Ask for the list that releases or confirms a hold, once it may count (rule P7)."""
        for hold in list(self._holds.values()):
            if time.monotonic() - hold.since >= hold.delay.total_seconds():
                await self._state.want(
                    hold.epoch.cluster,
                    resource_of(hold.epoch),
                    "the deletion fuse wants a second list",
                    last_epoch=hold.epoch.rank.id,
                )

    async def _sweep(self, completed: CompletedEpoch) -> None:
        gone = [c async for c in self._writer.sweep_candidates(completed)]
        if gone and not await self._is_believed(completed, len(gone)):
            return
        for candidate in gone:
            await self._publish(completed, candidate)
        await self._writer.finish_sweep(completed)
        await self._state.complete(completed)
        await self._writer.collect_tombstones(completed.cluster, completed.resource_key)
        if gone:
            log.info(
                "epoch_swept",
                cluster=completed.cluster,
                resource=completed.resource_key,
                deleted=len(gone),
            )
            SWEPT.labels(completed.cluster).inc(len(gone))

    async def _is_believed(self, completed: CompletedEpoch, gone: int) -> bool:
        known = await self._reader.count(completed.cluster, completed.resource_key)
        key = (completed.cluster, completed.resource_key, completed.scope)
        hold = self._holds.get(key)
        if not self._fuse.trips(gone=gone, known=known):
            self._release(key)
            return True
        if hold is not None and self._agrees(hold, completed):
            log.warning("fuse_released", cluster=completed.cluster, deletions=gone, known=known)
            self._release(key)
            return True
        if hold is None:
            self._holds[key] = _Hold(completed, time.monotonic(), self._fuse.delay(known=known))
            HELD.set(len(self._holds))
            reason = f"a list lacks {gone} of {known} objects: deletions held for a second list"
            log.error("fuse_held", cluster=completed.cluster, resource=completed.resource_key)
            await self._state.degrade(completed, reason)
            await self._state.forget_asked(completed)
        await self.ask_for_second_lists()
        return False

    def _agrees(self, hold: _Hold, completed: CompletedEpoch) -> bool:
        waited = time.monotonic() - hold.since
        return completed.rank.key > hold.epoch.rank.key and waited >= hold.delay.total_seconds()

    def _release(self, key: tuple[str, str, str]) -> None:
        self._holds.pop(key, None)
        HELD.set(len(self._holds))

    async def _publish(self, completed: CompletedEpoch, candidate: SweepCandidate) -> None:
        event = Event(
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
            observed_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            object=candidate.object,
            final_state_unknown=True,
        )
        subject = event_subject(
            event.cluster, event.group, event.resource, event.namespace, event.name, event.verb
        )
        ack: Ack = await self._window.send(subject, codec.encode(event), headers.build(event))
        if ack.error is not None:
            raise RuntimeError(f"a deletion was not stored: {ack.error.description}")
