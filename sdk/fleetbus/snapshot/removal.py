"""Removes tombstones, scopes and whole clusters: what goes without a deletion event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fleetbus.snapshot.guard import ITEM, read_guard
from fleetbus.snapshot.reads.walk import scan_hash, walk_members
from fleetbus.snapshot.scripts import register

if TYPE_CHECKING:
    from datetime import timedelta

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_CHUNK = 500


class Removal:
    """Removes what goes without a deletion event.

    Args:
        redis: as for `SnapshotWriter`, which has one of these.
        keys: the same.
        feed_length: about how many changes the feed of a shard keeps.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys, *, feed_length: int) -> None:
        self._redis = redis
        self._keys = keys
        self._feed_length = feed_length
        self._collect_tombstones = register(redis, "collect_tombstones")
        self._drop_last_states = register(redis, "drop_last_states")
        self._drop_scope = register(redis, "drop_scope")
        self._drop_cluster = register(redis, "drop_cluster")

    async def read_scopes(self, cluster: str) -> set[tuple[str, str]]:
        """Read (resource key, scope) of everything that the snapshot holds of a cluster."""
        members = cast(
            "set[bytes]", await cast("Any", self._redis.smembers(self._keys.scopes(cluster)))
        )
        pairs = (member.decode().partition("|") for member in members)
        return {(resource, scope) for resource, _, scope in pairs}

    async def collect_tombstones(self, cluster: str, resource: str, *, chunk: int = 500) -> int:
        """Drop tombstones that every scope that saw them has passed (rule P3); returns how many.

        It only deletes, so it also runs in a full store.
        """
        dropped = 0
        async for batch in walk_members(
            self._redis, self._keys.deleted(cluster, resource), chunk=chunk
        ):
            dropped += await self._collect_tombstones(
                keys=[
                    self._keys.guards(cluster, resource),
                    self._keys.tombstones(cluster, resource),
                    self._keys.deleted(cluster, resource),
                    self._keys.deletion_times(cluster, resource),
                    self._keys.scopes(cluster),
                ],
                args=[resource, self._keys.epochs(cluster, resource, ""), *batch],
            )
        return dropped

    async def find_tombstones(self, cluster: str) -> list[str]:
        """Find the resources of a cluster that have tombstones."""
        resources = sorted({resource for resource, _ in await self.read_scopes(cluster)})
        async with self._redis.pipeline(transaction=False) as pipe:
            for resource in resources:
                pipe.exists(self._keys.deleted(cluster, resource))
            answers = cast("list[int]", await pipe.execute())
        return [resource for resource, exists in zip(resources, answers, strict=True) if exists]

    async def drop_last_states(
        self, cluster: str, resource: str, *, kept: timedelta, chunk: int = 500
    ) -> int:
        """Drop last states of objects deleted longer ago than `kept`; returns how many (rule P3).

        Their tombstones stay. It only deletes, so it also runs in a full store.
        """
        limit = round(kept.total_seconds() * 1000)
        names = [
            self._keys.tombstones(cluster, resource),
            self._keys.deletion_times(cluster, resource),
        ]
        total = dropped = int(await self._drop_last_states(keys=names, args=[limit, chunk]))
        while dropped == chunk:
            dropped = int(await self._drop_last_states(keys=names, args=[limit, chunk]))
            total += dropped
        return total

    async def drop_scope(self, cluster: str, resource: str, scope: str, *, chunk: int = 500) -> int:
        """Remove the rows that only this scope holds, as 'unwatched': no deletion events (P6).

        The state of its epochs goes first, so that no sweep takes the remaining rows for objects
        that a list lacks (rule P7). It goes again last, with the name of the scope: late events may
        have restored it. They may restore rows, too, so the caller checks `read_scopes` from time
        to time.
        A scope that is watched again needs a new epoch.

        Returns:
            How many rows were removed.
        """
        shard = self._keys.shard_of(cluster)
        epoch_keys = (
            self._keys.epochs(cluster, resource, scope),
            self._keys.audit(cluster, resource, scope),
        )
        await self._redis.unlink(*epoch_keys)
        label_prefix = self._keys.labels(cluster, resource, "")
        owners, shards = self._keys.owners(shard, ""), self._keys.shards
        fixed = [self._feed_length, owners, cluster, resource, scope, label_prefix, shards]
        names = [*self._feed_of(cluster), *self._keys.rows(cluster, resource)]
        removed = 0
        for source in (self._keys.order(cluster, resource), self._keys.deleted(cluster, resource)):
            async for batch in walk_members(self._redis, source, chunk=chunk):
                removed += await self._drop_scope(keys=names, args=[*fixed, *batch])
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.unlink(*epoch_keys)
            pipe.srem(self._keys.scopes(cluster), f"{resource}|{scope}")
            await pipe.execute()
        return removed

    async def drop_cluster(self, cluster: str) -> None:
        """Remove a cluster that left: record, rows, tombstones, indexes, epochs.

        The record goes first, so that no more events are applied (rule P1); the list of its scopes
        goes last, so that it can be repeated.
        """
        shard = self._keys.shard_of(cluster)
        await cast("Any", self._redis.hdel(self._keys.clusters(shard), cluster))
        scopes = await self.read_scopes(cluster)
        for resource in {resource for resource, _ in scopes}:
            await self._drop_indexes(cluster, resource)
            await self._redis.unlink(*self._keys.rows(cluster, resource))
        epochs = [self._keys.epochs(cluster, resource, scope) for resource, scope in scopes]
        epochs += [self._keys.audit(cluster, resource, scope) for resource, scope in scopes]
        last = [
            *epochs,
            self._keys.resources(cluster),
            self._keys.audits(cluster),
            self._keys.scopes(cluster),
        ]
        await self._drop_cluster(
            keys=[*self._feed_of(cluster), *last],
            args=[self._feed_length, cluster, self._keys.shards],
        )

    def _feed_of(self, cluster: str) -> tuple[str, str]:
        shard = self._keys.shard_of(cluster)
        return self._keys.counter(shard), self._keys.feed(shard)

    async def _drop_indexes(self, cluster: str, resource: str) -> None:
        """Remove all index entries: the guards hold the terms of every row."""
        shard = self._keys.shard_of(cluster)
        async for raw in scan_hash(self._redis, self._keys.guards(cluster, resource), chunk=_CHUNK):
            guards = {key.decode(): read_guard(value) for key, value in raw.items()}
            labels = {
                term for guard in guards.values() for term in guard.labels.split(ITEM) if term
            }
            owned = [(u, k) for k, guard in guards.items() for u in guard.owners.split(ITEM) if u]
            async with self._redis.pipeline(transaction=False) as pipe:
                for label in labels:
                    pipe.unlink(self._keys.labels(cluster, resource, label))
                for uid, key in owned:
                    pipe.srem(self._keys.owners(shard, uid), f"{cluster}|{resource}|{key}")
                await pipe.execute()
