"""The query of a list, and the keys that match it: by range, by index, else by guard.

Bodies are not read here: a page fetches only its own.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot.guard import read_guard
from fleetbus.snapshot.reads.walk import Range, range_of, walk_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.asyncio import Redis

    from fleetbus.snapshot.reads.paging import Position
    from fleetbus_proto.keys import SnapshotKeys

_GUARDS = 500
"""Guards per HMGET."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Selects objects of one resource in some clusters.

    Attributes:
        clusters: names; an unknown one has no objects.
        resource: the resource key, `core/pods`.
        namespace: only this one; None for all.
        name: only objects of this name.
        labels: only objects whose labels match. The labels of an object without a body are unknown:
            it never matches a required label, see `SnapshotReader.unlabelled`.
        owner: only objects owned by this UID, by ownerReference or owner label; see above.
        limit: objects per page, at least one; None for all.
        continue_token: from the page before.
        count: whether to count what remains; with a selector that reads every guard.
    """

    clusters: Sequence[str]
    resource: str
    namespace: str | None = None
    name: str | None = None
    labels: LabelSelector | None = None
    owner: str | None = None
    limit: int | None = None
    continue_token: str = ""
    count: bool = True

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be positive, not {self.limit}")


class Span:
    """The keys of one page, and what comes after them.

    Attributes:
        picked: cluster and keys, in order, without clusters that have none.
        remaining: matches after the last picked key, in the clusters that were counted.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self.picked: list[tuple[str, Sequence[bytes]]] = []
        self.remaining = 0

    def fitting(self, wanted: int) -> int:
        """How many of so many keys still fit."""
        return wanted if self._limit is None else min(wanted, self._limit - self._taken)

    def take(self, cluster: str, members: Sequence[bytes], total: int) -> None:
        """Add keys of a cluster that has `total` matches."""
        if members:
            self.picked.append((cluster, members))
        self._taken += len(members)
        self.remaining += total - len(members)


async def select(redis: Redis, keys: SnapshotKeys, query: ListQuery, start: Position) -> Span:
    """Pick the keys of the page that starts after a position."""
    names = sorted({name for name in query.clusters if name >= start.cluster})
    if query.labels or query.owner is not None or (query.name and query.namespace is None):
        return await _select_matches(redis, keys, query, start, names)
    return await _select_ranges(redis, keys, query, start, names)


async def _select_ranges(
    redis: Redis, keys: SnapshotKeys, query: ListQuery, start: Position, names: Sequence[str]
) -> Span:
    """Select by range only: the server counts it without reading it."""
    bounds = [_bounds(query, start, name) for name in names]
    async with redis.pipeline(transaction=False) as pipe:
        for name, (low, high) in zip(names, bounds, strict=True):
            pipe.zlexcount(keys.order(name, query.resource), cast("Any", low), cast("Any", high))
        totals = cast("list[int]", await pipe.execute())
    span = Span(query.limit)
    for name, between, total in zip(names, bounds, totals, strict=True):
        order = keys.order(name, query.resource)
        span.take(name, await _read_range(redis, order, between, span.fitting(total)), total)
    return span


async def _read_range(redis: Redis, order: str, bounds: Range, wanted: int) -> list[bytes]:
    members: list[bytes] = []
    if wanted <= 0:
        return members
    async for batch in walk_members(redis, order, bounds):
        members += batch
        if len(members) >= wanted:
            break
    return members[:wanted]


async def _select_matches(
    redis: Redis, keys: SnapshotKeys, query: ListQuery, start: Position, names: Sequence[str]
) -> Span:
    labels = query.labels or LabelSelector()
    candidates = await _read_indexes(redis, keys, query, labels, names)
    # The label sets have matched the equality terms, unless the owner's set was used.
    rest = labels.rest if query.owner is None else labels
    span = Span(query.limit)
    for name in names:
        if not query.count and span.remaining:
            break
        between = _bounds(query, start, name)
        if candidates is None:
            most = sys.maxsize if query.count else span.fitting(sys.maxsize)
            matches = await _scan(redis, keys, query, name, between, rest, most)
        else:
            inside = sorted(k for k in candidates[name] if _is_inside(k, between, query.name))
            matches = await _filter(redis, keys.guards(name, query.resource), inside, rest)
        span.take(name, matches[: span.fitting(len(matches))], len(matches))
    return span


async def _read_indexes(
    redis: Redis, keys: SnapshotKeys, query: ListQuery, labels: LabelSelector, names: Sequence[str]
) -> dict[str, Iterable[bytes]] | None:
    """Read the keys from an index, per cluster; None if no index applies."""
    if query.owner is not None:
        return await _read_owned(redis, keys, query, names)
    if not labels.terms:
        return None
    async with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.sinter([keys.labels(name, query.resource, term) for term in labels.terms])
        found = cast("list[set[bytes]]", await pipe.execute())
    return dict(zip(names, found, strict=True))


async def _read_owned(
    redis: Redis, keys: SnapshotKeys, query: ListQuery, names: Sequence[str]
) -> dict[str, Iterable[bytes]]:
    owner = query.owner or ""
    indexes = [keys.owners(shard, owner) for shard in sorted(set(map(keys.shard_of, names)))]
    found = cast(
        "list[set[bytes]]", await asyncio.gather(*map(cast("Any", redis.smembers), indexes))
    )
    owned: dict[str, list[bytes]] = {name: [] for name in names}
    for member in set[bytes]().union(*found):
        cluster, resource, key = member.split(b"|", 2)
        if resource.decode() == query.resource and cluster.decode() in owned:
            owned[cluster.decode()].append(key)
    return dict(owned)


async def _scan(
    redis: Redis,
    keys: SnapshotKeys,
    query: ListQuery,
    cluster: str,
    bounds: Range,
    labels: LabelSelector,
    most: int,
) -> list[bytes]:
    """Scan the matches in order, up to the first one above `most`.

    So all pages of a list together cost as much as one list without pages.
    """
    matches: list[bytes] = []
    order, guards = keys.order(cluster, query.resource), keys.guards(cluster, query.resource)
    async for batch in walk_members(redis, order, bounds):
        inside = [key for key in batch if _is_inside(key, bounds, query.name)]
        matches += await _filter(redis, guards, inside, labels)
        if len(matches) > most:
            break
    return matches


async def _filter(
    redis: Redis, guards: str, members: list[bytes], labels: LabelSelector
) -> list[bytes]:
    """Keep those whose labels match, by their guards."""
    if not labels:
        return members
    kept: list[bytes] = []
    for at in range(0, len(members), _GUARDS):
        chunk = members[at : at + _GUARDS]
        raw = await cast("Any", redis.hmget(guards, cast("Any", chunk)))
        for key, value in zip(chunk, cast("list[bytes | None]", raw), strict=True):
            if value is not None and labels.matches(read_guard(value).label_map()):
                kept.append(key)
    return kept


def _bounds(query: ListQuery, start: Position, cluster: str) -> Range:
    """The range of the query in a cluster, after the position."""
    name = query.name if query.namespace is not None else None
    low, high = range_of(query.namespace, name)
    return Range(b"(" + start.key if start.key and cluster == start.cluster else low, high)


def _is_inside(key: bytes, bounds: Range, name: str | None) -> bool:
    low, high = bounds
    if low != b"-" and (key < low[1:] or (key == low[1:] and low[:1] == b"(")):
        return False
    if high != b"+" and (key > high[1:] or (key == high[1:] and high[:1] == b"(")):
        return False
    return name is None or key.endswith(b"/" + name.encode())
