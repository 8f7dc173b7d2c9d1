"""The one idempotent, order-guarded write to the snapshot (rules P1 to P5)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec
import redis.exceptions

from fleetbus.errors import StoreFull
from fleetbus.snapshot import update_records as amend
from fleetbus.snapshot.guard import NO_TERMS, SEP, UNKNOWN_TERMS, read_terms
from fleetbus.snapshot.outcomes import ApplyOutcome, ApplyResult, CompletedEpoch, EpochState
from fleetbus.snapshot.removal import Removal
from fleetbus.snapshot.scripts import register
from fleetbus.snapshot.sweep import Sweeps
from fleetbus.store import connection
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto import keys
from fleetbus_proto.events import UNREADABLE
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_comparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

    from fleetbus.snapshot.records import ClusterRecord, ResourceRecord
    from fleetbus.snapshot.update_records import Change
    from fleetbus_proto.events import EpochEnd, Event

MAX_BATCH: Final = 500
"""Most events per call: a script blocks the server while it runs."""
FEED_LENGTH: Final = 100_000
_END = "E"
_NO_ROOM: Final = ord("f")


_OUTCOMES: Final = {
    ord("a"): ApplyOutcome.APPLIED,
    ord("t"): ApplyOutcome.STALE,
    ord("s"): ApplyOutcome.SAME,
    ord("r"): ApplyOutcome.REFUSED,
}


class _Lineage(NamedTuple):
    """The fields that consecutive events share; the script gets them once for all."""

    cluster: str
    resource: str
    scope: str
    incarnation: int
    version: str
    id: int


class SnapshotWriter:
    """Applies events and keeps the records of the fleet.

    Every method is safe to repeat. The client must not repeat commands by itself: use `connect`.

    Args:
        redis: a client as `connect` makes it.
        feed_length: about how many changes the feed keeps.
    """

    def __init__(self, redis: Redis, *, feed_length: int = FEED_LENGTH) -> None:
        self._redis = redis
        self._feed_length = feed_length
        self._apply = register(redis, "apply")
        self._apply_when_full = register(redis, "apply", when_full=True)
        self.sweeps = Sweeps(redis)
        self.removal = Removal(redis, feed_length=feed_length)
        self._update_records = register(redis, "update_records", when_full=True)

    # --- events ---------------------------------------------------------------------------------

    async def apply(self, events: Sequence[Event]) -> ApplyResult:
        """Apply up to 500 events in one step, in their order (rules P1 to P5).

        An event whose resourceVersion is no decimal number is refused: it has no order (rule P2).

        Raises:
            ValueError: more than 500 events.
            StoreEmpty: the store was emptied; nothing was written, do not ack (P13).
            StoreFull: the store has no room for all of it, do not ack (P9). Events that need no
                room were written: deletions, and listed objects that are stored already.
            redis.exceptions.RedisError: the effect is unknown; repeat, do not ack (P9).
        """
        if len(events) > MAX_BATCH:
            raise ValueError(f"a batch of {len(events)} events is over {MAX_BATCH}")
        sound = [i for i, event in enumerate(events) if _is_sound(event)]
        outcomes = [ApplyOutcome.REFUSED] * len(events)
        if not sound:
            return ApplyResult(outcomes, [])
        batch = _Batch()
        for i in sound:
            batch.add_event(events[i])
        letters, completed, _ = await self._run(batch)
        for i, letter in zip(sound, letters, strict=True):
            outcomes[i] = _OUTCOMES[letter]
        return ApplyResult(outcomes, [CompletedEpoch.of(batch.sources[i - 1]) for i in completed])

    async def end_epoch(self, marker: EpochEnd) -> EpochState:
        """Store an end marker; returns whether the epoch is complete now (rule P5).

        A repetition returns the current count. A complete epoch stays complete, so a redelivered
        marker leads to the sweep again.

        Raises:
            StoreEmpty: as for `apply`.
            StoreFull: as for `apply`.
            redis.exceptions.RedisError: as for `apply`.
        """
        epoch = CompletedEpoch.of(marker)
        if marker.count < 0 or not _is_ranked(marker):
            return EpochState(
                complete=False,
                counted=0,
                expected=marker.count,
                outcome=ApplyOutcome.REFUSED,
                epoch=epoch,
            )
        batch = _Batch()
        batch.add_end(marker)
        letters, completed, counted = await self._run(batch)
        outcome = _OUTCOMES[letters[0]]
        return EpochState(
            complete=bool(completed) or outcome is ApplyOutcome.SAME,
            counted=int(counted),
            expected=marker.count,
            outcome=outcome,
            epoch=epoch,
        )

    async def _run(self, batch: _Batch) -> tuple[bytes, list[int], bytes]:
        try:
            return await self._call(self._apply, batch, is_full="")
        except redis.exceptions.OutOfMemoryError:  # before its first write
            answer = await self._call(self._apply_when_full, batch, is_full="1")
        if _NO_ROOM in answer[0]:
            raise StoreFull(
                "the store has used up its maxmemory: until it has room, messages wait on the bus"
                " and nothing new is reconciled"
            )
        return answer

    async def _call(
        self, script: AsyncScript, batch: _Batch, *, is_full: str
    ) -> tuple[bytes, list[int], bytes]:
        fixed = [self._feed_length, keys.owners(""), is_full, len(batch.sources)]
        try:
            answer = await script(
                keys=[keys.generation(), keys.counter(), keys.feed(), keys.clusters(), *batch.keys],
                args=[*fixed, *batch.lineages, *batch.events],
            )
        except redis.exceptions.ResponseError as e:
            if "NOGENERATION" in str(e):
                raise StoreEmpty("the snapshot's store is empty: no generation (P13)") from e
            raise
        return cast("tuple[bytes, list[int], bytes]", answer)

    async def is_full(self) -> bool:
        """Whether the store has used up its maxmemory."""
        return await connection.is_full(self._redis)

    # --- records --------------------------------------------------------------------------------

    async def put_cluster(self, name: str, record: ClusterRecord) -> None:
        """Add a cluster to the fleet, or replace its record."""
        await self._redis.hset(keys.clusters(), name, cast("str", msgspec.json.encode(record)))

    async def update_records(
        self, cluster: str, change: Change, *, completed: CompletedEpoch | None = None
    ) -> bool:
        """Update the records of a cluster and its resources in one step.

        Args:
            cluster: its name.
            change: computes the new records from the current ones; may be called more than once.
            completed: write only if this is the last completed epoch in the store.

        Returns:
            Whether they were written; False if the cluster is not in the fleet, or `completed` is
            not the last completed epoch.

        Raises:
            StoreEmpty: the store was emptied; nothing was written (P13).
            redis.exceptions.RedisError: the effect is unknown; may be repeated.
        """
        return await amend.update_records(
            self._redis, self._update_records, cluster, change, completed=completed
        )

    async def put_resource_state(self, cluster: str, record: ResourceRecord) -> None:
        """Write the record of one resource of a cluster (rule P14)."""
        value = cast("str", msgspec.json.encode(record))
        await self._redis.hset(keys.resources(cluster), record.key, value)

    # --- generations ----------------------------------------------------------------------------

    async def ensure_generation(self) -> str:
        """Return the generation of this store's content, a new one if it is empty (rule P13)."""
        fresh = secrets.token_hex(8)
        if await self._redis.set(keys.generation(), fresh, nx=True):
            await self.renew_feed()
        return cast("bytes", await self._redis.get(keys.generation())).decode()

    async def renew_feed(self) -> str:
        """Invalidate every feed position and resourceVersion issued so far (rules P13, A5).

        The counter jumps to the server's time in microseconds, above every earlier value, so that
        an old position is before the start of the feed and never means another change.
        """
        seconds, microseconds = await self._redis.time()
        held = int(await self._redis.get(keys.counter()) or 0)
        fresh = secrets.token_hex(8)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.unlink(keys.feed())
            pipe.incrby(keys.counter(), max(seconds * 1_000_000 + microseconds - held, 1))
            pipe.set(keys.feed_generation(), fresh)
            await pipe.execute()
        return fresh


class _Batch:
    """The arguments of one script call."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.lineages: list[str | int] = []
        self.events: list[str | bytes] = []
        self.sources: list[Event | EpochEnd] = []
        """The first event of each lineage."""
        self._indexes: dict[_Lineage, int] = {}

    def add_event(self, event: Event) -> None:
        is_live = event.verb is not Verb.DELETED
        body, degraded, terms = event.object or b"", event.degraded, NO_TERMS
        if is_live and not body:
            terms, degraded = UNKNOWN_TERMS, degraded or "absent"
        elif is_live:
            found = read_terms(body)
            terms = found or UNKNOWN_TERMS
            degraded = degraded if found else degraded or UNREADABLE
        head = (
            f"{self._lineage_of(event)}{SEP}{_code(event)}{SEP}{event.resource_version}{SEP}"
            f"{event.uid}{SEP}{degraded}{SEP}{terms.labels}{SEP}{terms.owners}"
        )
        self.events += (head, keys.object_key(event.namespace, event.name), body)

    def add_end(self, marker: EpochEnd) -> None:
        removed = "removed" if marker.removed else ""  # the field of the epochs hash (rule W17)
        head = (self._lineage_of(marker), _END, marker.count, "", removed, "", "")
        self.events += (SEP.join(map(str, head)), "", b"")

    def _lineage_of(self, source: Event | EpochEnd) -> int:
        resource = source.resource_key
        lineage = _Lineage(
            source.cluster,
            resource,
            source.scope,
            source.incarnation.number,
            source.epoch.resource_version,
            source.epoch.id,
        )
        index = self._indexes.get(lineage)
        if index is None:
            self._indexes[lineage] = index = len(self._indexes) + 1
            self.sources.append(source)
            epochs = keys.epochs(source.cluster, resource, source.scope)
            self.keys += (*keys.rows(source.cluster, resource), epochs, keys.scopes(source.cluster))
            label_prefix = keys.labels(source.cluster, resource, "")
            self.lineages += (
                *lineage,
                label_prefix,
                source.version,
                source.kind,
                source.incarnation.uid,
            )
        return index


def _code(event: Event) -> str:
    if event.verb is Verb.DELETED:
        return "S" if event.left_selection else "D"
    return "L" if event.verb is Verb.LISTED else "A"


def _is_sound(event: Event) -> bool:
    """Whether the script can order it, and its strings do not contain the guard's separators."""
    return (
        _is_ranked(event)
        and is_comparable(event.resource_version)
        and f"{event.uid}{event.degraded}".isprintable()
    )


def _is_ranked(source: Event | EpochEnd) -> bool:
    """Whether its lineage is unambiguous: a publisher may have written anything."""
    return (
        is_comparable(source.epoch.resource_version)
        and min(source.incarnation.number, source.epoch.id) >= 0
        and source.scope.isprintable()
    )
