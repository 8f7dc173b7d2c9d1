"""Counts objects by the values of their fields."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import Any, Final, TypeAlias

from fleetbus.kube.field_paths import FieldPath, One, Special, Value
from fleetbus.kube.selectors import FieldSelector
from fleetbus.snapshot import ListQuery
from fleetbus_query_api.fields.column import Undecided
from fleetbus_query_api.fields.matching import STEP, Matches, Segment, find_matches, value_reader
from fleetbus_query_api.fields.order import Rank, rank_of
from fleetbus_query_api.fields.source import FieldSource, Question
from fleetbus_query_api.limits.time_slices import TimeSlices

MAX_KEYS: Final = 4
MAX_GROUPS: Final = 10_000
"""Kept while they are counted; a field like a name has as many values as there are objects."""

GroupKey: TypeAlias = tuple[One, ...]


@dataclass(slots=True)
class Groups:
    """The outcome of a count.

    Attributes:
        version: of the snapshot; every object is at least as new.
        total: objects that match.
        counts: by the values of the fields, the largest first, up to a limit.
        group_count: how many groups there are.
        others: objects in none of them, because there were more groups than `MAX_GROUPS`.
        undecided: how many objects per cluster may match or not, or have unknown values.
    """

    version: int
    total: int = 0
    counts: list[tuple[GroupKey, int]] = field(default_factory=list[tuple[GroupKey, int]])
    group_count: int = 0
    others: int = 0
    undecided: dict[str, int] = field(default_factory=dict[str, int])


class FieldGroups:
    """Counts.

    Args:
        source: has the values of fields.
        slices: run the counting.
    """

    def __init__(self, *, source: FieldSource, slices: TimeSlices) -> None:
        self._source = source
        self._slices = slices

    async def count(
        self, query: ListQuery, fields: FieldSelector, by: Sequence[FieldPath], limit: int
    ) -> Groups:
        """Count the objects of each group; those without a body have no values.

        Args:
            query: which objects.
            fields: their selector.
            by: the fields whose values make a group; none for the total alone.
            limit: how many groups to answer.

        Raises:
            StoreError: the store was emptied.
            redis.exceptions.RedisError: the store does not answer.
        """
        question = Question(query, fields, by)
        version, is_kept = await asyncio.gather(
            self._source.tables.catch_up(), self._source.is_kept(question)
        )
        counting = _Counting(Groups(version), by, self._slices)
        async with aclosing(self._source.segments(question, is_kept=is_kept)) as segments:
            async for segment in segments:
                matches = await find_matches(segment, query.name, self._slices)
                await counting.take(segment, matches)
        await counting.finish(limit)
        return counting.groups


class _Counting:
    """The groups so far."""

    def __init__(self, groups: Groups, by: Sequence[FieldPath], slices: TimeSlices) -> None:
        self.groups = groups
        self._by = by
        self._slices = slices
        self._counts: dict[tuple[Any, ...], list[Any]] = {}

    async def take(self, segment: Segment, matches: Matches) -> None:
        """Count the rows of a segment that match."""
        groups = self.groups
        groups.total += len(matches.rows)
        unknown = matches.undecided
        if not self._by:
            self._note_undecided(segment.cluster, unknown)
            return
        counter: Counter[tuple[Any, ...]] = Counter()
        codes = [_code_reader(segment, path) for path in self._by]

        def step(start: int) -> None:
            rows = matches.rows[start : start + STEP]
            counter.update(zip(*([code(row) for row in rows] for code, _ in codes), strict=True))

        await self._slices.run(step, range(0, len(matches.rows), STEP))

        def merge(item: tuple[tuple[Any, ...], int]) -> None:
            nonlocal unknown
            values = [value(code) for code, (_, value) in zip(item[0], codes, strict=True)]
            if any(isinstance(value, Undecided) for value in values):
                unknown += item[1]
            self._add(values, item[1])

        await self._slices.run(merge, counter.items())
        self._note_undecided(segment.cluster, unknown)

    async def finish(self, limit: int) -> None:
        """Find the largest groups."""
        counts, best = list(self._counts.values()), list[tuple[int, list[Rank], GroupKey]]()

        def step(start: int) -> None:
            nonlocal best
            ranked = [
                (-count, [rank_of(value, is_descending=False) for value in values], values)
                for values, count in counts[start : start + STEP // 10]
            ]
            best = sorted(best + ranked, key=itemgetter(0, 1))[:limit]

        await self._slices.run(step, range(0, len(counts), STEP // 10))
        self.groups.counts = [(values, -count) for count, _, values in best]
        self.groups.group_count = len(counts)

    def _add(self, values: Sequence[Value | Undecided], count: int) -> None:
        """Count objects of these values; one with many values is in the group of each of them."""
        for group in product(*map(_ones, values)):
            key = tuple((type(value), value) for value in group)
            if (entry := self._counts.get(key)) is not None:
                entry[1] += count
            elif len(self._counts) < MAX_GROUPS:
                self._counts[key] = [group, count]
            else:
                self.groups.others += count

    def _note_undecided(self, cluster: str, count: int) -> None:
        if count:
            undecided = self.groups.undecided
            undecided[cluster] = undecided.get(cluster, 0) + count


def _ones(value: Value | Undecided) -> Iterable[One]:
    if isinstance(value, tuple):
        return dict.fromkeys(value) or (None,)
    return (None,) if isinstance(value, Undecided) else (value,)


def _code_reader(
    segment: Segment, path: FieldPath
) -> tuple[Callable[[int], Any], Callable[[Any], Value | Undecided]]:
    """Functions that read the code of a row, and the value of a code."""
    column = segment.columns.get(path)
    if column is None:
        return value_reader(segment, path), lambda value: value
    return column.codes.__getitem__, column.values.__getitem__


def render_value(value: One) -> str | int | float | bool | None:
    """A value as the answer has it."""
    return value.value if isinstance(value, Special) else value
