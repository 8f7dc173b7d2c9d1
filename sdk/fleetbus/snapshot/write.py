"""The one idempotent, order-guarded write to the snapshot (rules P1 to P5)."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import msgspec
import redis.exceptions

from fleetbus.errors import StoreFull
from fleetbus.snapshot import update_records as amend
from fleetbus.snapshot.guard import NO_TERMS, SEP, UNKNOWN_TERMS, read_terms
from fleetbus.snapshot.outcomes import ApplyOutcome, ApplyResult, CompletedEpoch, EpochState
from fleetbus.snapshot.removal import Removal
from fleetbus.snapshot.scripts import register
from fleetbus.snapshot.shards import check_generation, check_shards, make_generation, refusal
from fleetbus.snapshot.sweep import Sweeps
from fleetbus.store import connection
from fleetbus_proto.events import UNREADABLE
from fleetbus_proto.keys import object_key
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_comparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

    from fleetbus.snapshot.records import ClusterRecord, ResourceRecord
    from fleetbus.snapshot.update_records import Change
    from fleetbus_proto.events import EpochEnd, Event
    from fleetbus_proto.keys import SnapshotKeys

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


_Answer: TypeAlias = tuple[bytes, list[int], bytes]
"""Answer of apply.lua."""


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
        keys: the shards of the snapshot.
        feed_length: about how many changes the feed of a shard keeps.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys, *, feed_length: int = FEED_LENGTH) -> None:
        self._redis = redis
        self.keys = keys
        self._feed_length = feed_length
        self._apply = register(redis, "apply")
        self._apply_when_full = register(redis, "apply", when_full=True)
        self._set_up = register(redis, "set_up", after="server")
        self.sweeps = Sweeps(redis, keys)
        self.removal = Removal(redis, keys, feed_length=feed_length)
        self._update_records = register(redis, "update_records", when_full=True)

    # --- events ---------------------------------------------------------------------------------

    async def apply(self, events: Sequence[Event]) -> ApplyResult:
        """Apply up to 500 events, those of each shard in one step and in their order (P1 to P5).

        An event whose resourceVersion is no decimal number is refused: it has no order (rule P2).

        Raises:
            ValueError: more than 500 events.
            StoreEmpty: a shard was emptied; nothing was written to it, do not ack (P13).
            WrongShards: as `check_shards`; nothing was written, do not ack.
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
        batches: dict[int, _Batch] = {}
        for i in sound:
            shard = self.keys.shard_of(events[i].cluster)
            batch = batches.get(shard)
            if batch is None:
                batches[shard] = batch = _Batch(self.keys, shard)
            batch.add_event(events[i], i)
        completed: list[CompletedEpoch] = []
        for batch, (letters, indexes, _) in await self._run_all([*batches.values()]):
            for i, letter in zip(batch.positions, letters, strict=True):
                outcomes[i] = _OUTCOMES[letter]
            completed += [CompletedEpoch.of(batch.sources[index - 1]) for index in indexes]
        return ApplyResult(outcomes, completed)

    async def _run_all(self, batches: Sequence[_Batch]) -> Sequence[tuple[_Batch, _Answer]]:
        """Run each batch; if one fails, the others are written all the same."""
        if len(batches) == 1:
            return [(batches[0], await self._run(batches[0]))]
        answers = await asyncio.gather(*map(self._run, batches), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return list(zip(batches, cast("list[_Answer]", answers), strict=True))

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
        batch = _Batch(self.keys, self.keys.shard_of(marker.cluster))
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

    async def _run(self, batch: _Batch) -> _Answer:
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

    async def _call(self, script: AsyncScript, batch: _Batch, *, is_full: str) -> _Answer:
        keys, shard = self.keys, batch.shard
        fixed = (self._feed_length, keys.owners(shard, ""), is_full, keys.shards)
        names = (
            keys.generation(shard),
            keys.counter(shard),
            keys.feed(shard),
            keys.clusters(shard),
            keys.settled_version(shard),
            keys.prior_states(shard),
        )
        try:
            answer = await script(
                keys=[*names, *batch.keys],
                args=[*fixed, len(batch.sources), *batch.lineages, *batch.events],
            )
        except redis.exceptions.ResponseError as e:
            if refused := refusal(e, keys):
                raise refused from e
            raise
        return cast("_Answer", answer)

    async def is_full(self, shard: int) -> bool:
        """Whether the server of a shard has used up its maxmemory."""
        return await connection.is_full(self._redis, self.keys.counter(shard))

    # --- records --------------------------------------------------------------------------------

    async def put_cluster(self, name: str, record: ClusterRecord) -> None:
        """Add a cluster to the fleet, or replace its record."""
        members = self.keys.clusters(self.keys.shard_of(name))
        await self._redis.hset(members, name, cast("str", msgspec.json.encode(record)))

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
            self._redis, self.keys, self._update_records, cluster, change, completed=completed
        )

    async def put_resource_state(self, cluster: str, record: ResourceRecord) -> None:
        """Write the record of one resource of a cluster (rule P14)."""
        value = cast("str", msgspec.json.encode(record))
        await self._redis.hset(self.keys.resources(cluster), record.key, value)

    # --- generations ----------------------------------------------------------------------------

    async def ensure_generation(self) -> set[int]:
        """Set up the shards that are empty, as far as they answer (P13); returns which were.

        Raises:
            WrongShards: a shard was set up with another number of them; nothing was written.
            redis.exceptions.RedisError: the store is away; may be repeated.
        """
        await check_shards(self._redis, self.keys)
        shards = range(self.keys.shards)
        answers = await asyncio.gather(*map(self._set_up_one, shards), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            is_of_shard = isinstance(error, redis.exceptions.RedisError)
            if len(errors) == len(answers) or not is_of_shard:
                raise error
        return {shard for shard, is_fresh in zip(shards, answers, strict=True) if is_fresh is True}

    async def _set_up_one(self, shard: int) -> bool:
        keys = self.keys
        generation, is_fresh = await self._set_up(
            keys=_names_of_feed(keys, shard),
            args=[
                *(make_generation(secrets.token_hex(8), keys), secrets.token_hex(8)),
                *(shard, keys.shards),
            ],
        )
        check_generation(generation, keys)
        return bool(is_fresh)


class _Batch:
    """The arguments of one script call, about clusters of one shard."""

    def __init__(self, keys: SnapshotKeys, shard: int) -> None:
        self._names = keys
        self.shard = shard
        self.positions: list[int] = []
        """The position of each event among those that were to be applied."""
        self.keys: list[str] = []
        self.lineages: list[str | int] = []
        self.events: list[str | bytes] = []
        self.sources: list[Event | EpochEnd] = []
        """The first event of each lineage."""
        self._indexes: dict[_Lineage, int] = {}

    def add_event(self, event: Event, position: int) -> None:
        self.positions.append(position)
        is_live = event.verb is not Verb.DELETED
        body, degraded, terms = event.object or b"", event.degraded, NO_TERMS
        body_terms = read_terms(body) if body else None
        if is_live:
            terms = body_terms or UNKNOWN_TERMS
        if body and body_terms is None:
            degraded = UNREADABLE  # whatever it says itself: answers are made of such bytes
        elif is_live and not body:
            degraded = degraded or "absent"
        head = (
            f"{self._lineage_of(event)}{SEP}{_code(event)}{SEP}{event.resource_version}{SEP}"
            f"{event.uid}{SEP}{degraded}{SEP}{terms.labels}{SEP}{terms.owners}"
        )
        self.events += (head, object_key(event.namespace, event.name), body)

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
            names, cluster = self._names, source.cluster
            epochs = names.epochs(cluster, resource, source.scope)
            self.keys += (*names.rows(cluster, resource), epochs, names.scopes(cluster))
            label_prefix = names.labels(cluster, resource, "")
            self.lineages += (
                *lineage,
                label_prefix,
                source.version,
                source.kind,
                source.incarnation.uid,
            )
        return index


def _names_of_feed(keys: SnapshotKeys, shard: int) -> list[str]:
    return [
        *(keys.generation(shard), keys.feed_generation(shard)),
        *(keys.feed(shard), keys.counter(shard)),
    ]


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
