"""Short ways to write events of one resource, and a snapshot to apply them to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from fleetbus.process.clock import utc_now
from fleetbus.snapshot import (
    ApplyOutcome,
    ClusterRecord,
    EpochState,
    ListQuery,
    SnapshotReader,
    SnapshotWriter,
)
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from fleetbus.snapshot import CompletedEpoch

PODS = "core/pods"
OBSERVED_AT = "2026-01-02T03:04:05.000000Z"
UNSET = b"unset"


def body_of(name: str, version: int | str, **metadata: Any) -> bytes:
    tree = {"metadata": {"name": name, "resourceVersion": str(version), **metadata}}
    return msgspec.json.encode(tree)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One lineage of events: a watcher with its incarnation, rank and scope."""

    cluster: str = "eu1"
    group: str = "core"
    resource: str = "pods"
    incarnation: int = 1
    rank: tuple[int | str, int] = (1, 1)
    scope: str = ""

    def event(
        self,
        verb: str,
        name: str,
        version: int | str,
        *,
        uid: str = "",
        namespace: str = "prod",
        body: bytes | None = UNSET,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Event:
        content = body_of(name, version, **(metadata or {})) if body == UNSET else body
        return Event(
            cluster=self.cluster,
            incarnation=Incarnation(self.incarnation, "uid-of-kube-system"),
            group=self.group,
            version="v1",
            resource=self.resource,
            kind="Pod",
            namespace=namespace,
            name=name,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
            verb=Verb(verb),
            epoch=Rank(str(self.rank[0]), self.rank[1]),
            scope=self.scope,
            observed_at=OBSERVED_AT,
            object=content,
            **fields,
        )

    def added(self, name: str, version: int | str, **fields: Any) -> Event:
        return self.event("added", name, version, **fields)

    def modified(self, name: str, version: int | str, **fields: Any) -> Event:
        return self.event("modified", name, version, **fields)

    def deleted(self, name: str, version: int | str, **fields: Any) -> Event:
        return self.event("deleted", name, version, **fields)

    def listed(self, name: str, version: int | str, **fields: Any) -> Event:
        return self.event("listed", name, version, **fields)

    def end(self, count: int, **fields: Any) -> EpochEnd:
        return EpochEnd(
            cluster=self.cluster,
            incarnation=Incarnation(self.incarnation, "uid-of-kube-system"),
            group=self.group,
            version="v1",
            resource=self.resource,
            kind="Pod",
            epoch=Rank(str(self.rank[0]), self.rank[1]),
            scope=self.scope,
            count=count,
            observed_at=OBSERVED_AT,
            **fields,
        )

    def audit(self, version: int, audit_id: int, objects: dict[str, tuple[str, int]]) -> AuditPage:
        """A whole audit in one page: what the API server tells at this version, (uid, version)."""
        return AuditPage(
            cluster=self.cluster,
            incarnation=Incarnation(self.incarnation, "uid-of-kube-system"),
            group=self.group,
            version="v1",
            resource=self.resource,
            scope=self.scope,
            epoch=Rank(str(version), audit_id),
            page=0,
            last=True,
            items=[
                ("prod", name, uid, str(number)) for name, (uid, number) in sorted(objects.items())
            ],
            observed_at=OBSERVED_AT,
        )


@asynccontextmanager
async def full_store(redis: Redis) -> AsyncGenerator[None]:
    """A store that has used up its maxmemory."""
    await redis.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await redis.config_set("maxmemory", "0")


class Snapshot:
    """A writer and a reader on one store, with the questions that tests ask."""

    def __init__(self, redis: Redis, *, shards: int = 1) -> None:
        self.redis = redis
        self.keys = SnapshotKeys(shards)
        self.writer = SnapshotWriter(redis, self.keys)
        self.reader = SnapshotReader(redis, self.keys)

    async def set_up(self, *clusters: str) -> None:
        await self.writer.ensure_generation()
        for name in clusters:
            record = ClusterRecord(name=name, connected=True, last_answer=utc_now())
            await self.writer.put_cluster(name, record)

    async def forget_cluster(self, name: str) -> None:
        """Its record alone, so that it is no member any more."""
        await cast("Any", self.redis.hdel(self.keys.clusters(self.keys.shard_of(name)), name))

    async def forget_resource(self, cluster: str, resource: str) -> None:
        """The record of a resource alone."""
        await cast("Any", self.redis.hdel(self.keys.resources(cluster), resource))

    async def apply(self, *events: Event) -> list[ApplyOutcome]:
        return (await self.writer.apply(events)).outcomes

    async def apply_one(self, event: Event) -> str:
        return (await self.apply(event))[0].value

    async def run_epoch(self, source: Source, **objects: int) -> EpochState:
        """A whole list: every object, then the end marker."""
        await self.apply(*(source.listed(name, version) for name, version in objects.items()))
        return await self.writer.end_epoch(source.end(len(objects)))

    async def sweep(self, completed: CompletedEpoch) -> list[str]:
        """The names that the sweep would publish as deleted."""
        return sorted([c.name async for c in self.writer.sweeps.find_candidates(completed)])

    async def version(self, name: str, *, cluster: str = "eu1", namespace: str = "prod") -> str:
        """The stored version; empty when the object is not held."""
        entry = await self.reader.get(cluster, PODS, namespace, name)
        return entry.resource_version if entry else ""

    async def names(self, **query: Any) -> list[str]:
        fields: dict[str, Any] = {"clusters": ["eu1"], "resource": PODS, **query}
        page = await self.reader.list(ListQuery(**fields))
        return [entry.name for entry in page.entries]

    async def feed(self, shard: int = 0) -> list[tuple[str, str, str]]:
        """(id, type, key) of every entry of the feed of a shard."""
        raw: Any = await self.redis.xrange(self.keys.feed(shard))
        return [(i.decode(), f[b"type"].decode(), f[b"key"].decode()) for i, f in raw]

    async def forget_changes(self, shard: int = 0) -> None:
        """Leave the feed only its last change, as many others would."""
        await self.redis.xtrim(self.keys.feed(shard), maxlen=1, approximate=False)

    async def feed_generation(self, shard: int = 0) -> str | None:
        """The generation of the feed of a shard: when it changes, positions are void."""
        raw = cast("bytes | None", await self.redis.get(self.keys.feed_generation(shard)))
        return raw.decode() if raw else None

    async def all_keys(self) -> set[str]:
        raw: Any = await self.redis.keys("*")
        return {key.decode() for key in raw}
