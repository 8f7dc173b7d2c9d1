"""Removes tombstones, scopes and whole clusters: what goes without a deletion event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fleetbus.snapshot.guard import ITEM, read_guard
from fleetbus.snapshot.reads.walk import scan_hash, walk_members
from fleetbus.snapshot.scripts import register
from fleetbus_proto import keys

if TYPE_CHECKING:
    from datetime import timedelta

    from redis.asyncio import Redis

_CHUNK = 500


class Removal:
    """Removes what goes without a deletion event.

    Args:
        redis: as for `SnapshotWriter`, which has one of these.
        feed_length: about how many changes the feed keeps.
    """

    def __init__(self, redis: Redis, *, feed_length: int) -> None:
        self._redis = redis
        self._feed_length = feed_length
        self._collect_tombstones = register(redis, "collect_tombstones")
        self._drop_last_states = register(redis, "drop_last_states")
        self._drop_scope = register(redis, "drop_scope")
        self._drop_cluster = register(redis, "drop_cluster")

    async def read_scopes(self, cluster: str) -> set[tuple[str, str]]:
        """Read (resource key, scope) of everything that the snapshot holds of a cluster."""
        members = cast("set[bytes]", await cast("Any", self._redis.smembers(keys.scopes(cluster))))
        pairs = (member.decode().partition("|") for member in members)
        return {(resource, scope) for resource, _, scope in pairs}

    async def collect_tombstones(self, cluster: str, resource: str, *, chunk: int = 500) -> int:
        """Drop tombstones that every scope that saw them has passed (rule P3); returns how many.

        It only deletes, so it also runs in a full store.
        """
        dropped = 0
        async for batch in walk_members(self._redis, keys.deleted(cluster, resource), chunk=chunk):
            dropped += await self._collect_tombstones(
                keys=[
                    keys.guards(cluster, resource),
                    keys.tombstones(cluster, resource),
                    keys.deleted(cluster, resource),
                    keys.deletion_times(cluster, resource),
                    keys.scopes(cluster),
                ],
                args=[resource, keys.epochs(cluster, resource, ""), *batch],
            )
        return dropped

    async def find_tombstones(self, cluster: str) -> list[str]:
        """Find the resources of a cluster that have tombstones."""
        resources = sorted({resource for resource, _ in await self.read_scopes(cluster)})
        async with self._redis.pipeline(transaction=False) as pipe:
            for resource in resources:
                pipe.exists(keys.deleted(cluster, resource))
            answers = cast("list[int]", await pipe.execute())
        return [resource for resource, found in zip(resources, answers, strict=True) if found]

    async def drop_last_states(
        self, cluster: str, resource: str, *, kept: timedelta, chunk: int = 500
    ) -> int:
        """Drop last states of objects deleted longer ago than `kept`; returns how many (rule P3).

        Their tombstones stay. It only deletes, so it also runs in a full store.
        """
        limit = "+inf"
        if kept:
            seconds, _ = await self._redis.time()
            limit = str(int((seconds - kept.total_seconds()) * 1000))
        names = [keys.tombstones(cluster, resource), keys.deletion_times(cluster, resource)]
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
        known = (keys.epochs(cluster, resource, scope), keys.audit(cluster, resource, scope))
        await self._redis.unlink(*known)
        label_prefix = keys.labels(cluster, resource, "")
        fixed = [self._feed_length, keys.owners(""), cluster, resource, scope, label_prefix]
        names = [keys.counter(), keys.feed(), *keys.rows(cluster, resource)]
        removed = 0
        for source in (keys.order(cluster, resource), keys.deleted(cluster, resource)):
            async for batch in walk_members(self._redis, source, chunk=chunk):
                removed += await self._drop_scope(keys=names, args=[*fixed, *batch])
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.unlink(*known)
            pipe.srem(keys.scopes(cluster), f"{resource}|{scope}")
            await pipe.execute()
        return removed

    async def drop_cluster(self, cluster: str) -> None:
        """Remove a cluster that left: record, rows, tombstones, indexes, epochs.

        The record goes first, so that no more events are applied (rule P1); the list of its scopes
        goes last, so that it can be repeated.
        """
        await cast("Any", self._redis.hdel(keys.clusters(), cluster))
        held = await self.read_scopes(cluster)
        for resource in {resource for resource, _ in held}:
            await self._drop_indexes(cluster, resource)
            await self._redis.unlink(*keys.rows(cluster, resource))
        epochs = [keys.epochs(cluster, resource, scope) for resource, scope in held]
        epochs += [keys.audit(cluster, resource, scope) for resource, scope in held]
        last = [*epochs, keys.resources(cluster), keys.audits(cluster), keys.scopes(cluster)]
        await self._drop_cluster(
            keys=[keys.counter(), keys.feed(), *last], args=[self._feed_length, cluster]
        )

    async def _drop_indexes(self, cluster: str, resource: str) -> None:
        """Remove all index entries: the guards hold the terms of every row."""
        async for raw in scan_hash(self._redis, keys.guards(cluster, resource), chunk=_CHUNK):
            guards = {key.decode(): read_guard(value) for key, value in raw.items()}
            labels = {
                term for guard in guards.values() for term in guard.labels.split(ITEM) if term
            }
            owned = [(u, k) for k, guard in guards.items() for u in guard.owners.split(ITEM) if u]
            async with self._redis.pipeline(transaction=False) as pipe:
                for label in labels:
                    pipe.unlink(keys.labels(cluster, resource, label))
                for uid, key in owned:
                    pipe.srem(keys.owners(uid), f"{cluster}|{resource}|{key}")
                await pipe.execute()
