"""Enqueues requests again that used resources before these were synced (rule P18).

Live reads and writes do not wait for the watcher. If an object is deleted before the first list of
its resource, no list and no event ever shows it, so nobody would be woken to create it again. Each
request whose run used such a resource is therefore noted, and enqueued once that is synced.

A note is written after the run and before its outcome is recorded: a run that is cut off before is
repeated, and uses the resource again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.controller.controller import Controller
from fleetbus.process.cancellation import cancellable
from fleetbus.process.clock import now_ms
from fleetbus.process.log_once import LogOnce
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceState
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus_proto import keys

log = structlog.get_logger()

_MOST: Final = 10_000
_KEPT: Final = timedelta(hours=1)
"""A resource that nobody watches is never synced."""
_TRUSTED: Final = timedelta(seconds=5)
"""Time for which a synced resource counts as synced."""
_RECENT: Final = 10_000
_SELDOM_WATCHED: Final = frozenset({"core/events", "events.k8s.io/events", "core/secrets"})
"""Watched only where a watch spec names them; without a record of them it does not."""

Pair = tuple[str, str]
"""A cluster, and the key of a resource."""


class UnsyncedResources:
    """The requests of one controller that wait for resources to be synced.

    Args:
        controller: whose runs are noted, and whose requests are enqueued.
        redis: where its queue is.
        reader: tells what is synced.
        most: how many notes are kept; beyond them the oldest are dropped.
    """

    def __init__(
        self, controller: Controller, *, redis: Redis, reader: SnapshotReader, most: int = _MOST
    ) -> None:
        self._most = most
        self._controller = controller
        self._redis = redis
        self._reader = reader
        self._synced: OrderedDict[Pair, float] = OrderedDict()
        """When each was found to be synced."""
        self._log_once = LogOnce()

    async def note(self, request: Request, used: Iterable[Pair]) -> None:
        """Note what a run has used and is not synced.

        Raises:
            QueueUnavailableError: to be repeated.
        """
        since = time.monotonic() - _TRUSTED.total_seconds()
        pairs = [pair for pair in used if self._synced.get(pair, since) <= since]
        if not pairs or not self._controller.has_owned_watch:
            return
        try:
            with cancellable():
                unsynced = await self._unsynced(pairs)
                if unsynced:
                    await self._store(request, unsynced)
        except (RedisError, OSError) as e:
            raise QueueUnavailableError(str(e)) from e

    async def take_synced(self) -> Mapping[Request, list[bytes]]:
        """The requests whose resources are synced by now, with the notes to `forget` for each.

        Raises:
            redis.exceptions.RedisError: to be repeated.
        """
        if not self._controller.has_owned_watch:
            return {}
        members = cast("list[bytes]", await self._redis.zrange(self._key(), 0, -1))
        if not members:
            return {}
        waiting: dict[Pair, list[bytes]] = {}
        for member in members:
            cluster, resource, _ = member.decode().split(" ", 2)
            waiting.setdefault((cluster, resource), []).append(member)
        unsynced = await self._unsynced(waiting)
        by_request: dict[Request, list[bytes]] = {}
        for pair in waiting.keys() - unsynced:
            for member in waiting[pair]:
                item = member.decode().split(" ", 2)[2]
                request = self._controller.request(*item.split("/", 2))
                by_request.setdefault(request, []).append(member)
        return by_request

    async def forget(self, members: Iterable[bytes]) -> None:
        """Remove notes whose requests are enqueued, and those that are too old.

        Raises:
            redis.exceptions.RedisError: to be repeated.
        """
        oldest = now_ms() - int(_KEPT.total_seconds() * 1000)
        async with self._redis.pipeline(transaction=False) as pipe:
            for member in members:
                pipe.zrem(self._key(), member)
            pipe.zremrangebyscore(self._key(), 0, oldest)
            await pipe.execute()

    async def _unsynced(self, pairs: Iterable[Pair]) -> set[Pair]:
        clusters: dict[str, list[str]] = {}
        for cluster, resource in pairs:
            clusters.setdefault(resource, []).append(cluster)
        unsynced: set[Pair] = set()
        for resource, names in clusters.items():
            freshness = await self._reader.freshness(names, resource)
            for name in names:
                state = freshness[name].state
                if state is ResourceState.SYNCED:
                    self._note_synced((name, resource))
                elif state is not ResourceState.UNKNOWN or resource not in _SELDOM_WATCHED:
                    unsynced.add((name, resource))
        return unsynced

    def _note_synced(self, pair: Pair) -> None:
        self._synced[pair] = time.monotonic()
        self._synced.move_to_end(pair)
        if len(self._synced) > _RECENT:
            self._synced.popitem(last=False)

    async def _store(self, request: Request, pairs: Iterable[Pair]) -> None:
        by_key: dict[str, dict[str, int]] = {}
        for cluster, resource in pairs:
            target = self._controller.repairing(request, cluster)
            item = f"{cluster} {resource} {target.cluster}/{target.namespace}/{target.name}"
            by_key.setdefault(self._key(target.controller), {})[item] = now_ms()
        for key, members in by_key.items():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.zadd(key, cast("Any", members))
                pipe.zremrangebyrank(key, 0, -self._most - 1)
                _, dropped = await pipe.execute()
            if dropped and self._log_once.should_log():
                log.warning(
                    "unsynced_resources_not_noted",
                    controller=self._controller.name,
                    requests=dropped,
                    hint="their objects are compared again at the next resync",
                )

    def _key(self, controller: str = "") -> str:
        return keys.queue(controller or self._controller.name, "unsynced")
