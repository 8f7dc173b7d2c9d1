"""Pages of objects that are selected and sorted by any field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from fleetbus.kube.selectors import FieldSelector
from fleetbus.snapshot import Entry, InvalidToken, ListQuery, Page, SnapshotReader
from fleetbus.snapshot.reads.entries import make_entry
from fleetbus.snapshot.reads.paging import Position
from fleetbus_query_api.catalog.catalog import read_generation
from fleetbus_query_api.fields.bodies import UnreadableBody, matches_entry
from fleetbus_query_api.fields.list_page import ListPage
from fleetbus_query_api.fields.matching import STEP, Matches, Segment, find_matches
from fleetbus_query_api.fields.order import KEYED, Rank, SortKey, dump_ranks, load_ranks
from fleetbus_query_api.fields.ranks import rank_reader
from fleetbus_query_api.fields.source import FieldSource, Question
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.requests.paging import (
    FieldPosition,
    digest_question,
    read_token,
)

MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
"""Bodies per page (rule A8); a single object may be larger, but is never sent with another."""
_READ_BYTES: Final = 4 * 1024 * 1024
_READ_ROWS: Final = 250

MAX_READ: Final = 20_000
"""Objects whose bodies are read for one page in the order of lists; the next page continues there.
With another order all of them must be read, because any of them may come first."""

_After: TypeAlias = tuple[tuple[Rank, ...], str, bytes]
"""A position: ranks of the sort keys, cluster, key."""
_Row: TypeAlias = tuple[tuple[Rank, ...], str, bytes, int]
"""The same and the counter: in this order rows are compared."""


class FieldPages:
    """Finds pages.

    Args:
        reader: the snapshot.
        source: has the values of fields.
        slices: run the comparisons.
    """

    def __init__(self, *, reader: SnapshotReader, source: FieldSource, slices: TimeSlices) -> None:
        self._reader = reader
        self._source = source
        self._slices = slices

    async def find(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey]
    ) -> ListPage:
        """Find one page; what remains is counted.

        Raises:
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            StoreError: the store was emptied.
            redis.exceptions.RedisError: the store does not answer.
        """
        page, _ = await self._page(await self._find_rows(query, fields, sort), 0)
        return page

    async def walk(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey]
    ) -> AsyncGenerator[ListPage]:
        """Yield all pages from that of the query on; raises as `find` does.

        The limit of the query is for the rows that are sorted at a time, of which each page has as
        many as fit into `MAX_PAGE_BYTES`.
        """
        while True:
            result = await self._find_rows(query, fields, sort)
            taken = 0
            while True:
                page, taken = await self._page(result, taken)
                yield page
                if taken >= len(result.best.rows):
                    break
            if not page.page.continue_token:
                return
            query = replace(query, continue_token=page.page.continue_token)

    async def _find_rows(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey]
    ) -> _FoundRows:
        question = Question(query, fields, [key.path for key in sort])
        generation, version, is_kept = await asyncio.gather(
            read_generation(self._reader),
            self._source.tables.catch_up(),
            self._source.is_kept(question),
        )
        mark = _digest(query, fields, sort)
        after: _After | None = None
        if query.continue_token:
            position = read_token(query.continue_token, generation, version, mark)
            version = position.version
            after = (_load(position, sort), position.cluster, position.key)
        best = _BestRows(sort, query.limit or STEP, after, self._slices)
        # In the order of lists nothing before the position is read again.
        start = (
            Position(generation, version, *after[1:]) if after is not None and not sort else None
        )
        rows = self._source.segments(question, is_kept=is_kept, start=start)
        async with aclosing(rows) as segments:
            async for segment in segments:
                if best.leave_out(segment):
                    break
                await best.take(segment, await find_matches(segment, query.name, self._slices))
        return _FoundRows(query, fields, best, generation, version, mark)

    async def _page(self, result: _FoundRows, start: int) -> tuple[ListPage, int]:
        """The page that begins with a row, and up to which row it goes."""
        query, best = result.query, result.best
        entries, taken = await self._read(query, result.fields, best.rows[start:])
        taken += start
        token = ""
        if (last := best.last_of(taken)) is not None:
            ranks, cluster, key = last
            token = FieldPosition(
                result.generation, result.version, result.mark, dump_ranks(ranks), cluster, key
            ).to_token()
        is_counted = query.count and not best.is_enough
        remaining = best.total - taken if is_counted else None
        page = Page(entries, token, remaining, result.version, result.generation)
        return ListPage(page, best.undecided), taken

    async def _read(
        self, query: ListQuery, fields: FieldSelector, rows: Sequence[_Row]
    ) -> tuple[list[Entry], int]:
        """Read the bodies of rows, and how many rows fit into a page."""
        entries: list[Entry] = []
        size = taken = 0
        while taken < len(rows):
            batch = rows[taken : taken + _READ_ROWS]
            by_place = await self._read_part(query.resource, batch)
            for row in batch:
                if (row[1], row[2]) not in by_place:
                    break  # it was cut off: it is the first one of the next read
                entry = by_place[row[1], row[2]]
                if entry is not None and (
                    entry.counter == row[3] or _matches(entry, query, fields)
                ):
                    size += len(entry.body)
                    if entries and size > MAX_PAGE_BYTES:
                        return entries, taken
                    entries.append(entry)
                taken += 1
        return entries, taken

    async def _read_part(
        self, resource: str, batch: Sequence[_Row]
    ) -> dict[tuple[str, bytes], Entry | None]:
        """Read rows with their bodies; None for those that are gone, none for those cut off."""
        places: dict[str, list[bytes]] = {}
        for _, cluster, key, _ in batch:
            places.setdefault(cluster, []).append(key)
        most = max(1, _READ_BYTES // len(places))
        answers = await asyncio.gather(
            *(
                self._reader.rows.read(cluster, resource, keys, most_bytes=most)
                for cluster, keys in places.items()
            )
        )
        return {
            (cluster, row.key): make_entry(cluster, row.key, row.guard, row.body)
            if row.guard is not None and row.is_live
            else None
            for cluster, rows in zip(places, answers, strict=True)
            for row in rows
        }


class _BestRows:
    """The first rows of an order after a position, and how many come after it.

    Args:
        sort: the order; equal ones come by cluster, namespace and name.
        limit: how many rows.
        after: the position; None for the beginning.
        slices: run the work.

    Attributes:
        rows: the first ones.
        total: how many come after the position.
        undecided: how many per cluster may match or not.
        is_enough: whether the rest was left to the next page; then nobody knows the total.
    """

    def __init__(
        self,
        sort: Sequence[SortKey],
        limit: int,
        after: _After | None,
        slices: TimeSlices,
    ) -> None:
        self._sort = sort
        self._limit = limit
        self._after = after
        self._slices = slices
        self.rows: list[_Row] = []
        self.total = 0
        self.undecided: dict[str, int] = {}
        self.is_enough = False
        self._read = 0
        self._read_to: _After | None = None

    def last_of(self, taken: int) -> _After | None:
        """Where the next page starts, if so many rows were taken; None if there is none."""
        if taken < self.total:
            return self.rows[taken - 1][:3]
        return self._read_to if self.is_enough else None

    def leave_out(self, segment: Segment) -> bool:
        """Whether a segment and all after it are left to the next page."""
        is_full = self._read >= MAX_READ or self.total > self._limit
        self.is_enough = is_full and not segment.is_kept and not self._sort
        return self.is_enough

    async def take(self, segment: Segment, matches: Matches) -> None:
        """Take the rows of a segment that match."""
        cluster = segment.cluster
        if matches.undecided:
            self.undecided[cluster] = self.undecided.get(cluster, 0) + matches.undecided
        readers = [rank_reader(segment, key) for key in self._sort]
        ranks = [rank for rank, _ in readers]
        after, keys, counters = self._after, segment.keys, segment.counters

        def step(start: int) -> None:
            rows: Sequence[int] = matches.rows[start : start + STEP // 4]
            last = self.rows[-1] if len(self.rows) == self._limit else None
            if last is not None and not readers and last[1] <= cluster:
                self.total += len(rows)  # clusters and their rows come in order
                return
            if after is None:
                self.total += len(rows)
                if last is not None and readers:
                    _, sieve = readers[0]
                    rows = sieve(rows, last[0][0])
            ranked: list[_Row] = [
                (tuple(rank(row) for rank in ranks), cluster, keys[row], counters[row])
                for row in rows
            ]
            if after is not None:
                ranked = [row for row in ranked if row > after and row[:3] != after]
                self.total += len(ranked)
            if last is not None:
                ranked = [row for row in ranked if row < last]
            if ranked:
                self.rows = sorted(self.rows + ranked)[: self._limit]

        await self._slices.run(step, range(0, len(matches.rows), STEP // 4))
        if not segment.is_kept and not self._sort and keys:
            self._read += len(keys)
            self._read_to = ((), cluster, keys[-1])


class _FoundRows(NamedTuple):
    """The first rows of a question, and the position that tokens are of."""

    query: ListQuery
    fields: FieldSelector
    best: _BestRows
    generation: str
    version: int
    mark: bytes


def _digest(query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey]) -> bytes:
    requirements = (
        f"{requirement.path} {requirement.is_equal} {requirement.values}"
        for requirement in fields.requirements
    )
    return digest_question(
        query.resource,
        repr((query.namespace, query.name)),
        str(query.labels or ""),
        *requirements,
        *(f"by {key}" for key in sort),
    )


def _load(position: FieldPosition, sort: Sequence[SortKey]) -> tuple[Rank, ...]:
    try:
        return load_ranks(position.ranks, sort)
    except (ValueError, TypeError) as e:
        raise InvalidToken("invalid continue token: it has other sort keys") from e


def _matches(entry: Entry, query: ListQuery, fields: FieldSelector) -> bool:
    """Whether an object that has changed since it was found still matches."""
    if not query.labels and all(requirement.path in KEYED for requirement in fields.requirements):
        return True  # the key has not changed
    try:
        return matches_entry(entry, query.labels, fields)
    except UnreadableBody:
        return False
