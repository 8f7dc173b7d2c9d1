"""Suggests the closest watched resource when a name matches none in any cluster."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from fleetbus.kube.resource_names import suggest_resource
from fleetbus.kube.unwatched_types import how_to_watch
from fleetbus.snapshot.records import ResourceRecord
from fleetbus_proto.resources import Resource, ResourceName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_FRESH: Final = timedelta(seconds=5)
"""Cache lifetime of the keys: reading them takes a command per cluster."""
_LEFT_OUT: Final = "it may be misspelt, or left out by the settings of the watcher"

_decode: Final = msgspec.json.Decoder(ResourceRecord).decode


class Suggestion(NamedTuple):
    """Advice about a resource that no cluster has."""

    did_you_mean: str
    """The watched resource with the closest name, like `v1/configmaps`; or empty."""
    hint: str
    """Why it may be missing, if no name is close; or empty."""

    def __str__(self) -> str:
        """As the end of a sentence."""
        return f"did you mean {self.did_you_mean!r}?" if self.did_you_mean else self.hint


class WatchedResources:
    """The resource keys of all clusters, cached for some seconds.

    Args:
        redis: where the snapshot is.
        keys: its shards.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._clusters: Mapping[str, str] = {}
        self._suggestions: dict[Resource, Suggestion] = {}

    async def keys(self) -> frozenset[str]:
        """Return all resource keys; empty until a watcher has reported any.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        async with self._lock:
            age = time.monotonic() - self._read_at
            if not self._clusters or age > _FRESH.total_seconds():
                self._clusters = await self._read()
                self._suggestions.clear()
                self._read_at = time.monotonic()
        return frozenset(self._clusters)

    async def suggest(self, resource: Resource) -> Suggestion | None:
        """Return a suggestion for a resource that no cluster has; None if one has it.

        Also None while no resource is known at all.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        keys = await self.keys()
        if not keys or resource.key in keys:
            return None
        if resource not in self._suggestions:
            self._suggestions[resource] = await self._look_near(resource, keys)
        return self._suggestions[resource]

    async def _read(self) -> dict[str, str]:
        """Read the name of a cluster that has it, by resource key."""
        hashes = map(self._keys.clusters, range(self._keys.shards))
        members: list[list[bytes]]
        members = await asyncio.gather(*map(cast("Any", self._redis.hkeys), hashes))
        clusters = sorted(name.decode() for names in members for name in names)
        async with self._redis.pipeline(transaction=False) as pipe:
            for cluster in clusters:
                pipe.hkeys(self._keys.resources(cluster))
            key_lists: list[list[bytes]] = await pipe.execute() if clusters else []
        pairs = zip(clusters, key_lists, strict=True)
        return {key.decode(): cluster for cluster, resource_keys in pairs for key in resource_keys}

    async def _look_near(self, resource: Resource, keys: frozenset[str]) -> Suggestion:
        if how := how_to_watch([ResourceName(*resource)]):
            return Suggestion("", how)
        key = suggest_resource(resource, keys)
        cluster = self._clusters.get(key)
        if cluster is None:
            return Suggestion("", _LEFT_OUT)
        raw = await cast("Any", self._redis.hget(self._keys.resources(cluster), key))
        if raw is None:
            return Suggestion(key, "")  # it has just left
        record = _decode(raw)
        return Suggestion(str(Resource(record.group, record.version, record.plural)), "")
