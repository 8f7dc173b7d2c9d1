"""Finds the objects that a complete list proves to be gone (rule P6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import structlog

from fleetbus.snapshot.guard import Guard, read_guard
from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.reads.walk import scan_hash
from fleetbus.snapshot.scripts import register
from fleetbus_proto.events import Incarnation, Rank
from fleetbus_proto.keys import split_object_key
from fleetbus_proto.versions import is_newer, version_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

log = structlog.get_logger(__name__)


class SweepCandidate(NamedTuple):
    """An object that the list did not hold; `object` is its last state, None if unknown."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    """The version last stored; the deletion is published with the list's version."""
    object: bytes | None


class SweepState(NamedTuple):
    """Why objects that a complete list lacks may not count as gone (rule P7)."""

    is_held: bool
    """The fuse holds it, in this process or an earlier one."""
    is_superseded: bool
    """A newer list has begun: objects that it has brought are not missing."""


class _OtherScope(NamedTuple):
    """The last complete list of another scope of the resource."""

    scope: str
    incarnation: int
    completed: str
    """Its rank; empty without one."""


class OpenEpoch(NamedTuple):
    """An epoch with an end marker, not complete, and newer than the completed one."""

    cluster: str
    resource_key: str
    scope: str
    incarnation: int
    rank: Rank
    counted: int
    expected: int


class UnfinishedEpochs(NamedTuple):
    """The epochs of one cluster that are not finished."""

    pending: list[CompletedEpoch]
    """Complete, but their sweep is not finished."""
    waiting: list[OpenEpoch]
    """Their end marker is stored, but not all of their objects (rule P5). A completed epoch removes
    all up to it."""


class Sweeps:
    """The epochs of the snapshot, and the objects that complete lists lack.

    Args:
        redis: as for `SnapshotWriter`, which has one of these.
        keys: the same.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._mark_epoch = register(redis, "mark_epoch", when_full=True)
        self._find_unfinished = register(redis, "find_unfinished", after="")

    async def find_candidates(
        self, completed: CompletedEpoch, *, chunk: int = 500
    ) -> AsyncIterator[SweepCandidate]:
        """Find objects that a complete list did not hold, to be published as deleted (rule P6).

        Writes nothing: the rows go when those events come back through `SnapshotWriter.apply`. Rows
        that change meanwhile may or may not be seen.

        A row that another scope holds as well may only have left the selection of this one (W6): it
        is gone once the last complete list of each scope lacks it.
        """
        guards = self._keys.guards(completed.cluster, completed.resource_key)
        bodies = self._keys.bodies(completed.cluster, completed.resource_key)
        async for raw in scan_hash(self._redis, guards, chunk=chunk):
            read = {key: read_guard(value) for key, value in raw.items()}
            gone = {key: guard for key, guard in read.items() if _is_gone(completed, guard, key)}
            for key in await self._find_held_by_others(completed, gone):
                del gone[key]
            if not gone:
                continue
            last = cast(
                "list[bytes | None]", await self._redis.hmget(bodies, cast("Any", list(gone)))
            )
            for (key, guard), body in zip(gone.items(), last, strict=True):
                namespace, name = split_object_key(key.decode())
                yield SweepCandidate(namespace, name, guard.uid, guard.resource_version, body)

    async def count_scope(self, completed: CompletedEpoch, *, chunk: int = 500) -> int:
        """Count the objects in the scope of this epoch; reads the guard of each."""
        key = self._keys.guards(completed.cluster, completed.resource_key)
        count = 0
        async for raw in scan_hash(self._redis, key, chunk=chunk):
            guards = map(read_guard, raw.values())
            count += sum(
                guard.is_live and guard.mark(completed.scope) is not None for guard in guards
            )
        return count

    async def find_unfinished(self, cluster: str) -> UnfinishedEpochs:
        """Find the epochs of a cluster that wait for objects or for their sweep."""
        pending: list[CompletedEpoch] = []
        waiting: list[OpenEpoch] = []
        for resource, scope, fields in await self._read_unfinished(cluster):
            if "completed" in fields and fields["completed"] != fields.get("swept"):
                pending.append(_completed(cluster, resource, scope, fields))
            waiting += _open_epochs(cluster, resource, scope, fields)
        return UnfinishedEpochs(pending, waiting)

    async def find_pending(self, cluster: str) -> list[CompletedEpoch]:
        """Find completed epochs of a cluster whose sweep is not finished."""
        return (await self.find_unfinished(cluster)).pending

    async def hold(self, completed: CompletedEpoch) -> None:
        """Hold the sweep of this epoch for every process: its list is in doubt (rule P7).

        Only a newer list may release or confirm what this one lacks.
        """
        await self._mark_epoch(
            keys=[self._epochs_of(completed)], args=["held", _rank_of(completed)]
        )

    async def read_state(self, completed: CompletedEpoch) -> SweepState:
        """Read whether the sweep of this epoch is held or superseded (rule P7)."""
        raw = cast(
            "dict[bytes, bytes]", await cast("Any", self._redis.hgetall(self._epochs_of(completed)))
        )
        # A completed epoch removes the counts of all up to it.
        is_listed_anew = any(name.startswith((b"count:", b"end:")) for name in raw)
        return SweepState(raw.get(b"held") == _rank_of(completed).encode(), is_listed_anew)

    async def finish(self, completed: CompletedEpoch) -> None:
        """Record that all deletions of this epoch are on the bus, acknowledged.

        Does nothing if the scope is gone.
        """
        await self._mark_epoch(
            keys=[self._epochs_of(completed)], args=["swept", _rank_of(completed)]
        )

    def _epochs_of(self, completed: CompletedEpoch) -> str:
        return self._keys.epochs(completed.cluster, completed.resource_key, completed.scope)

    async def _find_held_by_others(
        self, completed: CompletedEpoch, gone: dict[bytes, Guard]
    ) -> list[bytes]:
        shared = [key for key, guard in gone.items() if guard.scopes != {completed.scope}]
        if not shared or completed.removed:
            return []  # a removed type is gone from all scopes
        cluster, resource = completed.cluster, completed.resource_key
        names = sorted(set[str]().union(*(gone[key].scopes for key in shared)) - {completed.scope})
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(self._keys.epochs(cluster, resource, name), ["incarnation", "completed"])
            # After the epochs: a list that was complete then has marked all that it held by now.
            pipe.hmget(self._keys.guards(cluster, resource), cast("Any", shared))
            *epochs, raw = cast("list[list[bytes | None]]", await pipe.execute())
        others = [
            _OtherScope(name, int(incarnation), (rank or b"").decode())
            for name, (incarnation, rank) in zip(names, epochs, strict=True)
            if incarnation is not None
        ]
        guards = [(key, read_guard(value)) for key, value in zip(shared, raw, strict=True) if value]
        return [key for key, guard in guards if any(_may_hold(other, guard) for other in others)]

    async def _read_unfinished(self, cluster: str) -> list[tuple[str, str, dict[str, str]]]:
        """Read resource key, scope and epochs hash of each scope with an unfinished epoch."""
        members = cast(
            "set[bytes]", await cast("Any", self._redis.smembers(self._keys.scopes(cluster)))
        )
        scopes = sorted(member.decode().partition("|")[::2] for member in members)
        if not scopes:
            return []
        names = [self._keys.epochs(cluster, resource, scope) for resource, scope in scopes]
        answer = cast("list[tuple[int, list[bytes]]]", await self._find_unfinished(keys=names))
        unfinished: list[tuple[str, str, dict[str, str]]] = []
        for position, raw in answer:
            resource, scope = scopes[position - 1]
            unfinished.append((resource, scope, _text_fields(raw)))
        return unfinished


def _text_fields(raw: list[bytes]) -> dict[str, str]:
    texts = [value.decode() for value in raw]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _open_epochs(
    cluster: str, resource: str, scope: str, fields: dict[str, str]
) -> Iterator[OpenEpoch]:
    for field, expected in fields.items():
        if field.startswith("end:"):
            version, _, epoch_id = field.removeprefix("end:").partition(" ")
            rank = Rank(resource_version=version, id=int(epoch_id))
            counted = int(fields.get(f"count:{version} {epoch_id}", "0"))
            incarnation = int(fields["incarnation"])
            yield OpenEpoch(cluster, resource, scope, incarnation, rank, counted, int(expected))


def _is_gone(completed: CompletedEpoch, guard: Guard, key: bytes) -> bool:
    mark = guard.mark(completed.scope)
    if not guard.is_live or mark is None:
        return False
    if int(guard.incarnation) != completed.incarnation.number:
        return int(guard.incarnation) < completed.incarnation.number
    rank = completed.rank
    if mark >= (version_key(rank.resource_version), version_key(str(rank.id))):
        return False
    if guard.resource_version == rank.resource_version:
        # The list claims to be as new as the row, but does not hold it: the list is broken.
        log.error(
            "sweep_skipped_broken_list",
            cluster=completed.cluster,
            resource=completed.resource_key,
            key=key.decode(),
            resource_version=guard.resource_version,
        )
        return False
    return is_newer(rank.resource_version, guard.resource_version)


def _may_hold(other: _OtherScope, guard: Guard) -> bool:
    mark = guard.mark(other.scope)
    if mark is None or int(guard.incarnation) > other.incarnation:
        return mark is not None
    if not other.completed:
        return True
    version, _, epoch_id = other.completed.partition(" ")
    if mark >= (version_key(version), version_key(epoch_id)):
        return True
    is_older = int(guard.incarnation) < other.incarnation
    return not is_older and not is_newer(version, guard.resource_version)


def _rank_of(completed: CompletedEpoch) -> str:
    return f"{completed.rank.resource_version} {completed.rank.id}"


def _completed(cluster: str, resource: str, scope: str, fields: dict[str, str]) -> CompletedEpoch:
    group, _, plural = resource.partition("/")
    version, _, epoch_id = fields["completed"].partition(" ")
    return CompletedEpoch(
        cluster=cluster,
        group=group,
        version=fields["version"],
        resource=plural,
        kind=fields["kind"],
        scope=scope,
        incarnation=Incarnation(number=int(fields["incarnation"]), uid=fields["uid"]),
        rank=Rank(resource_version=version, id=int(epoch_id)),
        removed=fields.get("removed") == fields["completed"],
    )
