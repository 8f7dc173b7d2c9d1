"""Checks of Redis or Valkey: what it keeps, its replicas, its room, its clock, its content."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, cast

from redis.asyncio import Redis

from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.cluster import ClusterRedis
from fleetbus.store.sentinel import SentinelRedis
from fleetbus_proto.keys import SnapshotKeys

_NEARLY_FULL: Final = 0.8
_FULL: Final = 0.95
_CLOCK: Final = 5.0
_EMPTY: Final = "the projector sets it up within seconds of its start: is one running?"


async def check_store(redis: Redis, keys: SnapshotKeys) -> AsyncIterator[Finding]:
    """Check each server of the store, and whether it holds a snapshot.

    Raises:
        redis.exceptions.RedisError: a server does not answer.
        StoreError: the snapshot has another number of shards than this process is set to.
    """
    servers = list(redis.masters) if isinstance(redis, ClusterRedis) else [redis]
    for server in servers:
        about = "store" if len(servers) == 1 else f"store {_place(server)}"
        info = cast("dict[str, Any]", await cast("Any", server).info())
        for finding in _server(about, info):
            yield finding
        if isinstance(server, SentinelRedis):
            yield _replicas(about, info)
        yield _clock(about, *(await cast("Any", server).time()))
    if empty := sorted(await SnapshotReader(redis, keys).empty_shards()):
        subject = "the snapshot is" if keys.shards == 1 else f"shards {empty} of the snapshot are"
        yield error("snapshot", f"{subject} empty", _EMPTY)
    else:
        yield ok("snapshot", f"set up, shards: {keys.shards}")


def _server(about: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version")
    yield ok(about, f"{name} {version}, maxmemory-policy {info.get('maxmemory_policy')}")
    yield _persistence(about, info)
    yield _room(about, info)


def _persistence(about: str, info: Mapping[str, Any]) -> Finding:
    if not info.get("aof_enabled"):
        return warning(
            about,
            "appendonly is off: a restart loses the queues, their back-offs and the deletions that"
            " wait for a confirmation, and everything is listed again",
            "set appendonly yes and appendfsync everysec, with a persistent volume",
        )
    if info.get("aof_last_write_status") != "ok":
        advice = "check its log: the disk may be full; it refuses writes until this is fixed"
        return error(about, "the last write of the append-only file failed", advice)
    return ok(about, "appendonly is on")


def _replicas(about: str, info: Mapping[str, Any]) -> Finding:
    count = int(info["connected_slaves"])
    if count:
        return ok(about, f"replicas that follow the master: {count}")
    return warning(
        about,
        "no replica follows the master, so nobody can take over from it",
        "see whether the other servers run, and what their logs say",
    )


def _room(about: str, info: Mapping[str, Any]) -> Finding:
    used, most = int(info["used_memory"]), int(info["maxmemory"])
    if not most:
        return warning(
            about,
            f"uses {used / 2**20:,.0f} MiB and has no maxmemory: the kernel may kill it",
            "set maxmemory to about three quarters of the container's memory limit",
        )
    share = f"uses {used / 2**20:,.0f} of {most / 2**20:,.0f} MiB"
    advice = "raise maxmemory, or watch fewer resources; docs/performance.md says what uses memory"
    if used > _FULL * most:
        return error(about, f"{share}: it refuses writes soon", advice)
    if used > _NEARLY_FULL * most:
        return warning(about, share, advice)
    return ok(about, share)


def _clock(about: str, seconds: int, micros: int) -> Finding:
    ahead = seconds + micros / 1e6 - time.time()
    if abs(ahead) < _CLOCK:
        return ok(about, "its clock agrees with this one")
    message = f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    return warning(about, message, "synchronise the clocks of both machines (NTP)")


def _place(server: Redis) -> str:
    options = server.connection_pool.connection_kwargs
    return f"{options.get('host')}:{options.get('port')}"
