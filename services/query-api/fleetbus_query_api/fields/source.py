"""Where the rows of a question come from: columns that are kept, or bodies that are read for it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldSelector
from fleetbus.snapshot import Entry, ListQuery, SnapshotReader
from fleetbus.snapshot.reads.entries import member_of
from fleetbus.snapshot.reads.paging import Position, write_token
from fleetbus_query_api.fields.bodies import UnreadableBody
from fleetbus_query_api.fields.column import UNDECIDED, FieldColumn
from fleetbus_query_api.fields.extract import field_reader
from fleetbus_query_api.fields.matching import (
    Condition,
    Segment,
    field_conditions,
    label_conditions,
)
from fleetbus_query_api.fields.order import CLUSTER, KEYED
from fleetbus_query_api.fields.table import FieldTable, Place
from fleetbus_query_api.fields.tables import CHUNK_BYTES, FieldTables
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.responses.render import body_of

FEW: Final = 2_000
"""So many objects are read for a question alone, where columns of everything cost more."""
REPAID: Final = 1.0
"""Reads for such questions, in multiples of what columns would read, after which columns are built:
with the first one where most objects are candidates."""
_MOST_NOTED: Final = 200
"""Kinds of questions whose reads are counted."""
STEP: Final = 250
"""So many are read at a time."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the fields of objects.

    Attributes:
        query: which objects; its limit and its token mean nothing here.
        fields: what must hold.
        shown: the fields that are sorted or grouped by.
    """

    query: ListQuery
    fields: FieldSelector
    shown: Sequence[FieldPath] = ()

    def paths(self, *, with_labels: bool) -> tuple[FieldPath, ...]:
        """The fields that take a body to be known."""
        fields = [
            requirement.path
            for requirement in self.fields.requirements
            if requirement.path not in KEYED
        ]
        fields += [path for path in self.shown if path not in KEYED and path != CLUSTER]
        if with_labels:
            fields += [condition.path for condition in label_conditions(self.query.labels)]
        return tuple(dict.fromkeys(fields))


class FieldSource:
    """Yields the rows of questions.

    Args:
        reader: the snapshot.
        tables: the columns that are kept.
        slices: run the decoding.
    """

    def __init__(self, *, reader: SnapshotReader, tables: FieldTables, slices: TimeSlices) -> None:
        self._reader = reader
        self._slices = slices
        self._reads: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        """Objects that were read for questions alone, by the columns that would answer them."""
        self.tables = tables

    async def is_kept(self, question: Question) -> bool:
        """Whether columns are to answer: they are there, or to build them costs no more by now."""
        query = question.query
        places, paths = _places(query), question.paths(with_labels=True)
        if self.tables.has(places, paths):
            return True
        if query.name is not None:
            return False
        count = self._reader.rows.count_candidates
        candidates, total = await asyncio.gather(
            count(query, most=FEW + 1), count(replace(query, namespace=None, labels=None), most=0)
        )
        if candidates > FEW:
            return True
        return self._note_reads((*places, *paths), candidates) >= REPAID * total

    def _note_reads(self, columns: tuple[Any, ...], count: int) -> int:
        """Count what is read for a question alone; returns the sum of all alike."""
        self._reads[columns] = self._reads.pop(columns, 0) + count
        if len(self._reads) > _MOST_NOTED:
            self._reads.popitem(last=False)
        return self._reads[columns]

    async def segments(
        self, question: Question, *, is_kept: bool, start: Position | None = None
    ) -> AsyncGenerator[Segment]:
        """Yield all rows that may match, as they were at the last `catch_up` or later.

        Those of a cluster come in order, and clusters in the order of their names.

        Args:
            question: which rows.
            is_kept: whether columns are to answer.
            start: no row up to this one.
        """
        query = question.query
        if start is not None:
            query = replace(query, clusters=[c for c in query.clusters if c >= start.cluster])
        if not is_kept:
            async with aclosing(self._read(question, query, start)) as read:
                async for segment in read:
                    yield segment
            return
        paths = question.paths(with_labels=True)
        conditions = field_conditions(question.fields) + label_conditions(query.labels)
        async with self.tables.open(_places(query), paths) as tables:
            for place in _places(query):
                table = tables.get(place)
                if table is not None:
                    async with table.lock:
                        yield _segment_of(table, query.namespace, conditions, start)
                    continue
                cluster_query = replace(query, clusters=[place.cluster])
                async with aclosing(self._read(question, cluster_query, start)) as read:
                    async for segment in read:
                        yield segment

    async def _read(
        self, question: Question, query: ListQuery, start: Position | None
    ) -> AsyncGenerator[Segment]:
        """Read bodies in pages, and forget them; the index selects by labels."""
        paths = question.paths(with_labels=False)
        conditions = field_conditions(question.fields)
        is_inside = start is not None and start.cluster in query.clusters
        token = write_token(start) if start is not None and is_inside else ""
        query = replace(query, limit=STEP, count=False, continue_token=token, max_bytes=CHUNK_BYTES)
        async for page in self._reader.pages(query):
            for cluster, entries in groupby(page.entries, attrgetter("cluster")):
                batch = list(entries)
                columns = await self._columns_of(batch, paths)
                keys = [member_of(entry.namespace, entry.name) for entry in batch]
                counters = [entry.counter for entry in batch]
                yield Segment(
                    cluster, keys, counters, columns, 0, len(keys), conditions, is_kept=False
                )

    async def _columns_of(
        self, entries: Sequence[Entry], paths: Iterable[FieldPath]
    ) -> dict[FieldPath, FieldColumn]:
        columns = {path: FieldColumn(len(entries)) for path in paths}

        def step(row: int) -> None:
            body = body_of(entries[row])
            for path, column in columns.items():
                try:
                    column.set(row, field_reader(path)(body))
                except UnreadableBody:
                    column.set(row, UNDECIDED)

        await self._slices.run(step, range(len(entries)) if columns else ())
        return columns


def _places(query: ListQuery) -> list[Place]:
    return [Place(cluster, query.resource) for cluster in sorted(set(query.clusters))]


def _segment_of(
    table: FieldTable,
    namespace: str | None,
    conditions: Sequence[Condition],
    start: Position | None,
) -> Segment:
    low, high = table.span(namespace)
    cluster = table.place.cluster
    if start is not None and start.cluster == cluster:
        low = max(low, bisect_right(table.keys, start.key))
    return Segment(
        cluster, table.keys, table.counters, table.columns, low, high, conditions, is_kept=True
    )
