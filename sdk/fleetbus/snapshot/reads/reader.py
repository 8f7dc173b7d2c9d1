"""Reads of the snapshot: get, list, keys, records, freshness. Bodies are never decoded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from redis.exceptions import RedisError

from fleetbus.snapshot.guard import UNKNOWN, Guard, read_guard
from fleetbus.snapshot.offsets.checkpoint_store import ask_whether_settled
from fleetbus.snapshot.reads.entries import (
    AvailableClusters,
    Entry,
    KnownObject,
    ObjectVersion,
    Page,
    make_entry,
    member_of,
)
from fleetbus.snapshot.reads.lookups import Lookups
from fleetbus.snapshot.reads.page_reads import place_rows, split_rows
from fleetbus.snapshot.reads.paging import Position, read_token, write_token
from fleetbus.snapshot.reads.past import PastReads
from fleetbus.snapshot.reads.picking import KeyPicker, Picked
from fleetbus.snapshot.reads.point_reads import Place, PointReads, read_rows
from fleetbus.snapshot.reads.resource_types import read_resource_records, read_resource_types
from fleetbus.snapshot.reads.rows import RowReads
from fleetbus.snapshot.reads.suggestions import WatchedResources
from fleetbus.snapshot.reads.versions import Versions
from fleetbus.snapshot.reads.walk import range_of, walk_members
from fleetbus.snapshot.records import (
    ClusterRecord,
    Freshness,
    ResourceRecord,
    ScopeRecord,
)
from fleetbus.snapshot.shards import check_generation
from fleetbus_proto.keys import object_key, split_object_key
from fleetbus_proto.versions import version_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus.snapshot.reads.query import ListQuery
    from fleetbus.snapshot.records import ResourceType
    from fleetbus_proto.keys import SnapshotKeys

_EVALUATED = 200
"""Clusters whose freshness is evaluated at a time: 2 ms."""

_cluster_decoder = msgspec.json.Decoder(ClusterRecord)
_resource_decoder = msgspec.json.Decoder(ResourceRecord)

_COUNTED: Final = 500
"""Resources that are counted with one round trip."""


class SnapshotReader:
    """Reads what `SnapshotWriter` wrote; only from the primary (rule P10).

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._points = PointReads(redis)
        self._versions = Versions(redis, keys)
        self._picker = KeyPicker(redis, keys)
        self.watched = WatchedResources(redis, keys)
        """The watched resources of all clusters."""
        self.rows = RowReads(redis, keys)
        """Many rows of a resource."""
        self.lookups = Lookups(redis, keys)
        """Objects of any resource."""
        self.past = PastReads(redis, keys)
        """The last lists, and the objects that changed since a time."""

    # --- objects --------------------------------------------------------------------------------

    async def get(self, cluster: str, resource: str, namespace: str, name: str) -> Entry | None:
        """Read one object; None if the snapshot does not hold it.

        None does not prove absence unless the resource is synced (rules P14, R1).
        """
        bodies = self._keys.bodies(cluster, resource)
        pairs = await self._fetch(cluster, resource, bodies, [member_of(namespace, name)])
        return next((entry for guard, entry in pairs if guard.is_live), None)

    async def get_with_freshness(
        self, cluster: str, resource: str, namespace: str, name: str
    ) -> tuple[Entry | None, Freshness]:
        """Read one object as `get` does, and how reliable that is (rule A4), in one step.

        All of it is of one moment, so the object is exactly as fresh as this says.
        """
        keys, shard, key = self._keys, self._keys.shard_of(cluster), member_of(namespace, name)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hget(keys.clusters(shard), cluster)
            pipe.hget(keys.resources(cluster), resource)
            pipe.hget(keys.guards(cluster, resource), cast("str", key))
            pipe.hget(keys.bodies(cluster, resource), cast("str", key))
            ask_whether_settled(pipe, keys, shard)
            member, record, raw, body, is_settled = await pipe.execute()
        guard = _maybe_guard(raw)
        freshness = Freshness.of(
            _maybe_resource(record),
            _maybe_cluster(member),
            datetime.now(UTC),
            namespace,
            is_settled=is_settled == 1,
        )
        if guard is None or not guard.is_live:
            return None, freshness
        return make_entry(cluster, key, guard, body or b""), freshness

    async def known(
        self, cluster: str, resource: str, names: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], KnownObject]:
        """Read objects and tombstones by (namespace, name), of one moment (rule P10).

        Keys that have neither are omitted.
        """
        members = [member_of(namespace, name) for namespace, name in names]
        bodies = self._keys.bodies(cluster, resource)
        pairs = await self._fetch(cluster, resource, bodies, members)
        return {
            (entry.namespace, entry.name): KnownObject(entry, guard.is_live)
            for guard, entry in pairs
        }

    async def versions(
        self, cluster: str, resource: str, names: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], ObjectVersion]:
        """Read versions of objects and tombstones by (namespace, name), without bodies.

        Keys that have neither are omitted.
        """
        if not names:
            return {}
        fields = [object_key(*name) for name in names]
        raw = await cast("Any", self._redis.hmget(self._keys.guards(cluster, resource), fields))
        return {
            name: ObjectVersion(int(guard.incarnation), guard.resource_version, guard.is_live)
            for name, guard in zip(names, map(_maybe_guard, raw), strict=True)
            if guard is not None
        }

    async def floor(
        self, cluster: str, resource: str, namespace: str = ""
    ) -> tuple[int, str] | None:
        """Read incarnation number and resourceVersion of the newest complete list (rule P4).

        A change up to there of an object that the snapshot does not hold is obsolete. None before
        the first complete list.

        Args:
            cluster: its name.
            resource: the resource key.
            namespace: only lists that include this one; empty for any.
        """
        record = _maybe_resource(
            await cast("Any", self._redis.hget(self._keys.resources(cluster), resource))
        )
        if record is None:
            return None
        scopes = record.scopes or {"": ScopeRecord()}
        async with self._redis.pipeline(transaction=False) as pipe:
            for name, scope in scopes.items():
                if not namespace or scope.namespace in {"", namespace}:
                    pipe.hmget(self._keys.epochs(cluster, resource, name), "incarnation", "floor")
            values = cast("list[list[bytes | None]]", await pipe.execute())
        floors = [(int(of), floor.decode()) for of, floor in values if of and floor]
        return max(floors, key=lambda pair: (pair[0], version_key(pair[1])), default=None)

    async def highest_incarnation(self, cluster: str, resource: str) -> int:
        """Read the highest incarnation number that was applied for a resource; 0 for none (P2)."""
        record = _maybe_resource(
            await cast("Any", self._redis.hget(self._keys.resources(cluster), resource))
        )
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in {"", *(record.scopes if record is not None else ())}:
                pipe.hget(self._keys.epochs(cluster, resource, scope), "incarnation")
            numbers = cast("list[bytes | None]", await pipe.execute())
        return max(int(number or 0) for number in numbers)

    async def body(self, cluster: str, resource: str, namespace: str, name: str) -> bytes | None:
        """Read the JSON of one object with one command; for reconcilers.

        None if the snapshot does not hold the object, or not its body: `get` tells which.
        """
        bodies = self._keys.bodies(cluster, resource)
        raw = await cast("Any", self._redis.hget(bodies, object_key(namespace, name)))
        return cast("bytes | None", raw) or None

    async def get_deleted(
        self, cluster: str, resource: str, namespace: str, name: str
    ) -> Entry | None:
        """Read the last state of a deleted object whose tombstone still exists (rule P3)."""
        bodies = self._keys.tombstones(cluster, resource)
        pairs = await self._fetch(cluster, resource, bodies, [member_of(namespace, name)])
        return next((entry for guard, entry in pairs if not guard.is_live), None)

    async def list(self, query: ListQuery) -> Page:
        """Read one page of a list.

        Raises:
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token was issued before the store was lost (rule P13).
            StoreEmpty: the store has no generation.
        """
        # Before any row: what is written after this has a higher version (rule A5). A step of its
        # own, as each of several shards must be closed before a row of any other is read.
        current = await self._versions.read()
        start = Position(current.generation, current.number)
        if query.continue_token:
            start = read_token(query.continue_token, current)
        picks = await self._picker.pick(query, start)
        entries = await self._fetch_rows(query.resource, picks.rows)
        token = ""
        if not picks.is_last:
            last = picks.rows[-1]
            token = write_token(msgspec.structs.replace(start, cluster=last.cluster, key=last.key))
        return Page(entries, token, picks.remaining, start.version, start.generation)

    async def pages(self, query: ListQuery) -> AsyncIterator[Page]:
        """Read all pages of a list, from that of the query on; raises as `list` does."""
        while True:
            page = await self.list(query)
            yield page
            if not page.continue_token:
                return
            query = replace(query, continue_token=page.continue_token)

    async def unlabelled(self, clusters: Sequence[str], resource: str) -> Sequence[Entry]:
        """Read the objects whose labels and owners are unknown, because their bodies are.

        No list by labels or by owner holds them. Earlier releases did not index them.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in clusters:
                pipe.smembers(self._keys.labels(name, resource, UNKNOWN))
            member_sets = cast("list[set[bytes]]", await pipe.execute())
        pairs = zip(clusters, member_sets, strict=True)
        rows = [Picked(name, key, 0) for name, members in pairs for key in sorted(members)]
        return await self._fetch_rows(resource, rows)

    async def keys(
        self, cluster: str, resource: str, namespace: str | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        """Yield (namespace, name) of every object, in order: for a full enqueue (rule P12)."""
        async for batch in walk_members(
            self._redis, self._keys.order(cluster, resource), range_of(namespace)
        ):
            for key in batch:
                yield split_object_key(key.decode())

    async def deleted_keys(self, cluster: str, resource: str) -> AsyncIterator[tuple[str, str]]:
        """Yield (namespace, name) of every tombstone: part of a full enqueue (rule P12)."""
        async for batch in walk_members(self._redis, self._keys.deleted(cluster, resource)):
            for key in batch:
                yield split_object_key(key.decode())

    async def count(self, cluster: str, resource: str) -> int:
        """Count the objects of a resource in a cluster."""
        return int(await self._redis.zcard(self._keys.order(cluster, resource)))

    async def counts(self, cluster: str, resources: Sequence[str]) -> Sequence[int]:
        """Count the objects of each of some resources in a cluster, which may have thousands."""
        numbers: list[int] = []
        for start in range(0, len(resources), _COUNTED):
            async with self._redis.pipeline(transaction=False) as pipe:
                for resource in resources[start : start + _COUNTED]:
                    pipe.zcard(self._keys.order(cluster, resource))
                numbers += await pipe.execute()
        return numbers

    # --- records --------------------------------------------------------------------------------

    async def clusters(self) -> Sequence[ClusterRecord]:
        """Read the records of all clusters, by name."""
        hashes = map(self._keys.clusters, range(self._keys.shards))
        return _decode_clusters(await asyncio.gather(*map(cast("Any", self._redis.hvals), hashes)))

    async def available_clusters(self) -> AvailableClusters:
        """Read the records of the clusters in the shards that answer.

        Raises:
            redis.exceptions.RedisError: no shard answers.
        """
        answers = await self._ask_shards(cast("Any", self._redis.hvals), self._keys.clusters)
        away = frozenset(range(self._keys.shards)) - answers.keys()
        return AvailableClusters(_decode_clusters(answers.values()), away, self._keys)

    async def cluster(self, name: str) -> ClusterRecord | None:
        """Read the record of one cluster; None if it is not in the fleet."""
        members = self._keys.clusters(self._keys.shard_of(name))
        return _maybe_cluster(await cast("Any", self._redis.hget(members, name)))

    async def resources(self, cluster: str, *, group: str = "") -> Sequence[ResourceRecord]:
        """Read the resource records of a cluster, or of one API group there, by key."""
        key = self._keys.resources(cluster)
        fields: list[bytes] = await cast("Any", self._redis.hkeys(key)) if group else []
        named = [field for field in fields if field.startswith(f"{group}/".encode())]
        reading = self._redis.hmget(key, named or [""]) if group else self._redis.hvals(key)
        raw = [_resource_decoder.decode(value) for value in await cast("Any", reading) if value]
        return sorted(raw, key=lambda record: record.key)

    def resource_types(
        self, clusters: Sequence[str]
    ) -> AsyncIterator[tuple[str, Mapping[str, ResourceType]]]:
        """Yield the types of the resources of each cluster, by resource key."""
        return read_resource_types(self._redis, self._keys, clusters)

    def resource_records(
        self, clusters: Sequence[str]
    ) -> AsyncIterator[tuple[str, Sequence[ResourceRecord]]]:
        """Yield the resource records of each cluster, in the order of their keys."""
        return read_resource_records(self._redis, self._keys, clusters)

    async def freshness(
        self,
        clusters: Iterable[str],
        resource: str,
        *,
        namespace: str = "",
        now: datetime | None = None,
    ) -> dict[str, Freshness]:
        """Read how reliable the snapshot is for a resource, per cluster (rules A4, P14).

        In a store that lost its last writes nothing is complete until the projector has repeated
        them (rule P11): an object that is absent there may exist.

        Args:
            clusters: names; one that is not in the fleet is `unknown`, so incomplete.
            resource: the resource key.
            namespace: the only one requested; unknown where it is not watched.
            now: the time to measure ages from; by default the present.
        """
        shards: dict[int, list[str]] = {}
        for name in clusters:
            shards.setdefault(self._keys.shard_of(name), []).append(name)
        at = now or datetime.now(UTC)
        # Sent together; evaluated one by one, so that others run in between.
        parts = [
            self._freshness(shard, names[start : start + _EVALUATED], resource, namespace, at)
            for shard, names in shards.items()
            for start in range(0, len(names), _EVALUATED)
        ]
        states: dict[str, Freshness] = {}
        for portion in await asyncio.gather(*parts):
            states.update(portion)
        return states

    async def _freshness(
        self, shard: int, names: Sequence[str], resource: str, namespace: str, at: datetime
    ) -> dict[str, Freshness]:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(self._keys.clusters(shard), names)
            for name in names:
                pipe.hget(self._keys.resources(name), resource)
            # Last: a server that took over meanwhile may have lost what was read here.
            ask_whether_settled(pipe, self._keys, shard)
            members, *raw, is_settled = await pipe.execute()
        return {
            name: Freshness.of(
                _maybe_resource(record),
                _maybe_cluster(cluster),
                at,
                namespace,
                is_settled=is_settled == 1,
            )
            for name, cluster, record in zip(names, members, raw, strict=True)
        }

    async def generation(self) -> str | None:
        """Read the generation of the content; None if the store, or a shard, is empty (rule P13).

        Raises:
            WrongShards: the snapshot was set up with another number of shards.
        """
        names = map(self._keys.generation, range(self._keys.shards))
        values = await asyncio.gather(*map(cast("Any", self._redis.get), names))
        generations = [check_generation(raw, self._keys) for raw in values if raw is not None]
        return ",".join(generations) if len(generations) == self._keys.shards else None

    async def empty_shards(self) -> set[int]:
        """The shards that were emptied, or never set up, as far as they answer (rule P13).

        Raises:
            WrongShards: the snapshot was set up with another number of shards.
            redis.exceptions.RedisError: no shard answers.
        """
        answers = await self._ask_shards(self._redis.get, self._keys.generation)
        for raw in answers.values():
            if raw is not None:
                check_generation(raw, self._keys)
        return {shard for shard, raw in answers.items() if raw is None}

    async def probe(self, shard: int) -> None:
        """Ask a shard anything; raises while its server is away."""
        await self._redis.get(self._keys.generation(shard))

    async def _ask_shards(
        self, command: Callable[[str], Any], key: Callable[[int], str]
    ) -> dict[int, Any]:
        """The answers of the shards that answer; raises if none does."""
        shards = range(self._keys.shards)
        answers = await asyncio.gather(*map(command, map(key, shards)), return_exceptions=True)
        by_shard = {
            shard: answer
            for shard, answer in zip(shards, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        for answer in answers:
            if isinstance(answer, BaseException) and not (
                by_shard and isinstance(answer, (RedisError, OSError))
            ):
                raise answer
        return by_shard

    async def version(self) -> int:
        """Read the resourceVersion of the whole snapshot (rule A5).

        Every change up to it is applied, and every later one gets a higher version.

        Raises:
            StoreEmpty: the store has no generation.
        """
        return (await self._versions.read()).number

    # --- inside ---------------------------------------------------------------------------------

    async def _fetch_rows(self, resource: str, rows: Sequence[Picked]) -> list[Entry]:
        """Read the objects of picked keys, without those that are gone."""
        entries: list[Entry] = []
        for chunk in split_rows(rows):
            values = await read_rows(self._redis, [*place_rows(self._keys, resource, chunk)])
            for row, (raw, body) in zip(chunk, values, strict=True):
                guard = _maybe_guard(raw)
                if guard is not None and guard.is_live:
                    entries.append(make_entry(row.cluster, row.key, guard, body or b""))
        return entries

    async def _fetch(
        self, cluster: str, resource: str, bodies: str, members: Sequence[bytes]
    ) -> Sequence[tuple[Guard, Entry]]:
        """Read guards and bodies of one moment, without keys that are gone."""
        guards = self._keys.guards(cluster, resource)
        shard = self._keys.shard_of(cluster)
        places = [Place(guards, bodies, member, shard) for member in members]
        if len(places) == 1:
            rows = [await self._points.get(places[0])]
        else:
            rows = await read_rows(self._redis, places)
        pairs: list[tuple[Guard, Entry]] = []
        for key, (raw, body) in zip(members, rows, strict=True):
            if raw is not None:
                guard = read_guard(raw)
                pairs.append((guard, make_entry(cluster, key, guard, body or b"")))
        return pairs


def _decode_clusters(hashes: Iterable[Iterable[bytes]]) -> list[ClusterRecord]:
    records = [_cluster_decoder.decode(raw) for values in hashes for raw in values]
    return sorted(records, key=lambda record: record.name)


def _maybe_guard(raw: bytes | None) -> Guard | None:
    return None if raw is None else read_guard(raw)


def _maybe_cluster(raw: bytes | None) -> ClusterRecord | None:
    return None if raw is None else _cluster_decoder.decode(raw)


def _maybe_resource(raw: bytes | None) -> ResourceRecord | None:
    return None if raw is None else _resource_decoder.decode(raw)
