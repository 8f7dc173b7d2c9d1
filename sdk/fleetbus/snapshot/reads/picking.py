"""Picks the keys of a page: by range, by index, else by guard. Bodies are not read here.

One round trip of a shard, and of all shards side by side, gives the keys of an ordinary page,
however many clusters there are; a selector that few objects match takes more of them, each of
bounded length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot.guard import read_guard
from fleetbus.snapshot.reads.walk import Range, range_of
from fleetbus.snapshot.scripts import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus.snapshot.reads.paging import Position
    from fleetbus.snapshot.reads.query import ListQuery
    from fleetbus_proto.keys import SnapshotKeys

MOST: Final = 5_000
"""Keys that one call of the script looks at: it blocks its server meanwhile."""
_GUARDS: Final = 1_000
"""Guards that one call answers: 300 bytes each."""


_Part: TypeAlias = tuple[int, int, list[bytes], list[int], list[bytes | None]]
_Answer: TypeAlias = tuple[int, bytes, int, list[_Part]]
"""Answer of the script."""


class Picked(NamedTuple):
    """A key of a page."""

    cluster: str
    key: bytes
    size: int
    """Bytes of the body; 0 if nobody has asked."""


_ORDER: Final = attrgetter("cluster", "key")


class Picks(NamedTuple):
    """The keys of a page, in order.

    Attributes:
        rows: at most as many as the page may have.
        remaining: matches after them; None if they were not counted.
        is_last: whether there are none after them.
    """

    rows: Sequence[Picked]
    remaining: int | None
    is_last: bool


class KeyPicker:
    """Picks the keys of pages.

    Args:
        redis: where the snapshot is.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._script = register(redis, "pick_keys", after="")

    async def pick(self, query: ListQuery, start: Position) -> Picks:
        """Pick the keys of the page that starts after a position."""
        names = sorted({name for name in query.clusters if name >= start.cluster})
        if query.owner is not None:
            return _cut(query, await self._pick_owned(query, start, names))
        shards: dict[int, list[str]] = {}
        for name in names:
            shards.setdefault(self._keys.shard_of(name), []).append(name)
        cursors = [
            _Cursor(self._keys, query, start, shard_names) for shard_names in shards.values()
        ]
        rows: list[Picked] = []
        needed = None if query.limit is None else query.limit + 1  # that one tells of a next page
        is_first = True
        while any(not cursor.is_done for cursor in cursors):
            left = MOST if needed is None else needed - len(rows)
            if left <= 0:
                break
            open_cursors = [cursor for cursor in cursors if not cursor.is_done and not cursor.rows]
            await asyncio.gather(
                *(self._ask(cursor, left, is_first=is_first) for cursor in open_cursors)
            )
            rows += _merge(cursors)
            is_first = False
        counted = (
            sum(cursor.count for cursor in cursors) if query.count and query.is_range else None
        )
        return _cut(query, rows, counted)

    async def _ask(self, cursor: _Cursor, needed: int, *, is_first: bool) -> None:
        # A selector may match few of the keys: after a first look, look at many.
        enough = needed if is_first or not cursor.needs_guards else max(needed, _GUARDS)
        most = _GUARDS if cursor.needs_guards else MOST
        cursor.add(await self._script(*cursor.arguments(min(enough, most), most, counts=is_first)))

    async def _pick_owned(
        self, query: ListQuery, start: Position, names: Sequence[str]
    ) -> list[Picked]:
        """Pick what the index of owners has, which is read as a whole."""
        owned = await self._read_owned(query, names)
        rows: list[Picked] = []
        for name in names:
            bounds = _bounds(query, start, name)
            inside = (key for key in owned.get(name, ()) if _is_inside(key, bounds, query.name))
            rows += [Picked(name, key, 0) for key in sorted(inside)]
        if not query.labels or not rows:
            return rows
        async with self._redis.pipeline(transaction=False) as pipe:
            for row in rows:
                pipe.hget(self._keys.guards(row.cluster, query.resource), cast("str", row.key))
            guards = cast("list[bytes | None]", await pipe.execute())
        pairs = zip(rows, guards, strict=True)
        return [row for row, guard in pairs if _matches(query.labels, guard)]

    async def _read_owned(
        self, query: ListQuery, names: Sequence[str]
    ) -> Mapping[str, Iterable[bytes]]:
        owner, shard_of = query.owner or "", self._keys.shard_of
        indexes = [self._keys.owners(shard, owner) for shard in sorted(set(map(shard_of, names)))]
        member_sets = cast(
            "list[set[bytes]]",
            await asyncio.gather(*map(cast("Any", self._redis.smembers), indexes)),
        )
        owned: dict[str, list[bytes]] = {}
        for member in set[bytes]().union(*member_sets):
            cluster, resource, key = member.split(b"|", 2)
            if resource.decode() == query.resource:
                owned.setdefault(cluster.decode(), []).append(key)
        return owned


class _Cursor:
    """Position up to which the clusters of one shard were read.

    Attributes:
        rows: those that were read, in order, and are not in the page yet.
        count: how many objects there were after the position.
        needs_guards: whether guards decide what matches.
    """

    def __init__(
        self, keys: SnapshotKeys, query: ListQuery, start: Position, names: Sequence[str]
    ) -> None:
        self._keys = keys
        self._query = query
        self._names: Sequence[str] = names
        self._first = _bounds(query, start, names[0])
        self._low = self._first.low
        labels = query.labels or LabelSelector()
        self._terms = labels.terms
        self._rest = labels.rest
        self.needs_guards = bool(labels.rest)
        self.rows = deque[Picked]()
        self.count = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to read."""
        return not self._names

    @property
    def cluster(self) -> str:
        """The one that is read next."""
        return self._names[0]

    def arguments(
        self, needed: int, most: int, *, counts: bool
    ) -> tuple[Sequence[str], Sequence[Any]]:
        """KEYS and ARGV of the script."""
        keys, query = self._keys, self._query
        resource = query.resource
        named: list[str] = []
        for name in self._names:
            named += (
                *(keys.order(name, resource), keys.bodies(name, resource)),
                keys.guards(name, resource),
            )
        every = range_of(query.namespace, query.name if query.namespace is not None else None)
        prefixes = [keys.labels(name, resource, "") for name in self._names if self._terms]
        return named, [
            *(needed, most),
            "1" if counts and query.count and query.is_range else "",
            "1" if self.needs_guards else "",
            *(self._low, every.low, every.high),
            *(query.name_anywhere, len(self._terms), *self._terms, *prefixes),
        ]

    def add(self, answer: _Answer) -> None:
        """Take the answer of the script, and move on."""
        going_on, low, count, parts = answer
        self.count += count
        for at, is_ordered, members, sizes, guards in parts:
            name = self._names[at - 1]
            rows = [Picked(name, *pair) for pair in zip(members, sizes, strict=True)]
            if self.needs_guards:
                pairs = zip(rows, guards, strict=True)
                rows = [row for row, guard in pairs if _matches(self._rest, guard)]
            self.rows += rows if is_ordered else self._in_order(rows)
        self._names = self._names[going_on - 1 :] if going_on else []
        self._low = low

    def _in_order(self, rows: Sequence[Picked]) -> Sequence[Picked]:
        """Sort the rows of one cluster, and leave out those outside of its range."""
        if rows and rows[0].cluster == self.cluster:
            bounds = Range(self._low, self._first.high)
        else:
            bounds = _bounds(self._query, None, "")
        return sorted((row for row in rows if _is_inside(row.key, bounds, None)), key=_ORDER)


def _merge(cursors: Sequence[_Cursor]) -> list[Picked]:
    """Take the rows that no later one of any shard can precede, in order."""
    frontier = min((cursor.cluster for cursor in cursors if not cursor.is_done), default=None)
    ready = [row for cursor in cursors for row in _take_upto(cursor.rows, frontier)]
    return ready if len(cursors) == 1 else sorted(ready, key=_ORDER)


def _take_upto(rows: deque[Picked], frontier: str | None) -> Iterator[Picked]:
    while rows and (frontier is None or rows[0].cluster <= frontier):
        yield rows.popleft()


def _cut(query: ListQuery, rows: Sequence[Picked], counted: int | None = None) -> Picks:
    """Cut a page from what was found, by number and by bytes."""
    end = len(rows) if query.limit is None else min(query.limit, len(rows))
    if query.max_bytes is not None:
        size = 0
        for at, row in enumerate(rows[:end]):
            size += row.size
            if size > query.max_bytes and at:
                end = at
                break
    is_last = end == len(rows)
    if query.owner is not None and query.count:
        counted = len(rows)
    remaining = 0 if is_last else None
    return Picks(rows[:end], remaining if counted is None else max(counted - end, 0), is_last)


def _matches(labels: LabelSelector, guard: bytes | None) -> bool:
    return guard is not None and labels.matches(read_guard(guard).label_map())


def _bounds(query: ListQuery, start: Position | None, cluster: str) -> Range:
    """The range of the query in a cluster, after the position.

    A position before the range does not widen it: a token may have been made up, by somebody who
    may read one namespace only (rule A2).
    """
    name = query.name if query.namespace is not None else None
    low, high = range_of(query.namespace, name)
    if start is None or cluster != start.cluster or start.key < low[1:]:
        return Range(low, high)
    return Range(b"(" + start.key if start.key else low, high)


def _is_inside(key: bytes, bounds: Range, name: str | None) -> bool:
    low, high = bounds
    if low != b"-" and (key < low[1:] or (key == low[1:] and low[:1] == b"(")):
        return False
    if high != b"+" and (key > high[1:] or (key == high[1:] and high[:1] == b"(")):
        return False
    return name is None or key.endswith(b"/" + name.encode())
