"""Removes tombstones, scopes and whole clusters: what goes without a deletion event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fleetbus.snapshot.guard import ITEM, read_guard
from fleetbus.snapshot.reads.walk import walk_members
from fleetbus_proto import keys

if TYPE_CHECKING:
    from datetime import timedelta

    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

_CHUNK = 500


async def read_scopes(redis: Redis, cluster: str) -> set[tuple[str, str]]:
    """Read (resource key, scope) of everything that the snapshot holds of a cluster."""
    members = cast("set[bytes]", await cast("Any", redis.smembers(keys.scopes(cluster))))
    pairs = (member.decode().partition("|") for member in members)
    return {(resource, scope) for resource, _, scope in pairs}


async def collect_tombstones(
    redis: Redis, script: AsyncScript, cluster: str, resource: str, *, chunk: int
) -> int:
    """Drop the tombstones that are no longer needed (rule P3)."""
    dropped = 0
    async for batch in walk_members(redis, keys.deleted(cluster, resource), chunk=chunk):
        dropped += await script(
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


async def find_tombstones(redis: Redis, cluster: str) -> list[str]:
    """Find the resources of a cluster that have tombstones."""
    resources = sorted({resource for resource, _ in await read_scopes(redis, cluster)})
    async with redis.pipeline(transaction=False) as pipe:
        for resource in resources:
            pipe.exists(keys.deleted(cluster, resource))
        answers = cast("list[int]", await pipe.execute())
    return [resource for resource, found in zip(resources, answers, strict=True) if found]


async def drop_last_states(
    redis: Redis, script: AsyncScript, cluster: str, resource: str, *, kept: timedelta, chunk: int
) -> int:
    """Drop the last states of objects deleted longer ago than `kept` (rule P3)."""
    limit = "+inf"
    if kept:
        seconds, _ = await redis.time()
        limit = str(int((seconds - kept.total_seconds()) * 1000))
    names = [keys.tombstones(cluster, resource), keys.deletion_times(cluster, resource)]
    total = dropped = int(await script(keys=names, args=[limit, chunk]))
    while dropped == chunk:
        dropped = int(await script(keys=names, args=[limit, chunk]))
        total += dropped
    return total


async def drop_scope(
    redis: Redis,
    script: AsyncScript,
    cluster: str,
    resource: str,
    scope: str,
    *,
    chunk: int,
    feed_length: int,
) -> int:
    """Remove the rows that only this scope holds, and the state of its epochs (rule P6).

    The epochs go first, so that no sweep takes the remaining rows for objects that a list lacks
    (rule P7). They go again last, with the name of the scope: late events may have restored them.
    """
    known = (keys.epochs(cluster, resource, scope), keys.audit(cluster, resource, scope))
    await redis.unlink(*known)
    label_prefix = keys.labels(cluster, resource, "")
    fixed = [feed_length, keys.owners(""), cluster, resource, scope, label_prefix]
    names = [
        keys.counter(),
        keys.feed(),
        keys.bodies(cluster, resource),
        keys.guards(cluster, resource),
        keys.tombstones(cluster, resource),
        keys.order(cluster, resource),
        keys.deleted(cluster, resource),
        keys.deletion_times(cluster, resource),
    ]
    removed = 0
    for source in (keys.order(cluster, resource), keys.deleted(cluster, resource)):
        async for batch in walk_members(redis, source, chunk=chunk):
            removed += await script(keys=names, args=[*fixed, *batch])
    async with redis.pipeline(transaction=True) as pipe:
        pipe.unlink(*known)
        pipe.srem(keys.scopes(cluster), f"{resource}|{scope}")
        await pipe.execute()
    return removed


async def drop_cluster(
    redis: Redis, script: AsyncScript, cluster: str, *, feed_length: int
) -> None:
    """Remove all of a cluster; the list of its scopes goes last, so that it can be repeated."""
    await cast("Any", redis.hdel(keys.clusters(), cluster))
    held = await read_scopes(redis, cluster)
    for resource in {resource for resource, _ in held}:
        await _drop_indexes(redis, cluster, resource)
        await redis.unlink(
            keys.bodies(cluster, resource),
            keys.tombstones(cluster, resource),
            keys.order(cluster, resource),
            keys.deleted(cluster, resource),
            keys.deletion_times(cluster, resource),
            keys.guards(cluster, resource),
        )
    epochs = [keys.epochs(cluster, resource, scope) for resource, scope in held]
    epochs += [keys.audit(cluster, resource, scope) for resource, scope in held]
    last = [*epochs, keys.resources(cluster), keys.audits(cluster), keys.scopes(cluster)]
    await script(keys=[keys.counter(), keys.feed(), *last], args=[feed_length, cluster])


async def _drop_indexes(redis: Redis, cluster: str, resource: str) -> None:
    """Remove all index entries: the guards hold the terms of every row."""
    cursor = -1
    while cursor:
        cursor, raw = cast(
            "tuple[int, dict[bytes, bytes]]",
            await redis.hscan(keys.guards(cluster, resource), max(cursor, 0), count=_CHUNK),
        )
        guards = {key.decode(): read_guard(value) for key, value in raw.items()}
        labels = {term for guard in guards.values() for term in guard.labels.split(ITEM) if term}
        owned = [(u, k) for k, guard in guards.items() for u in guard.owners.split(ITEM) if u]
        async with redis.pipeline(transaction=False) as pipe:
            for label in labels:
                pipe.unlink(keys.labels(cluster, resource, label))
            for uid, key in owned:
                pipe.srem(keys.owners(uid), f"{cluster}|{resource}|{key}")
            await pipe.execute()
