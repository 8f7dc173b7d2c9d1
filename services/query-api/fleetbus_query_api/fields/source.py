"""Where the rows of a question come from: columns that are kept, or bodies that are read for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

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
"""So many objects are read for a question alone; columns of everything cost more."""
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
        self.tables = tables

    async def is_kept(self, question: Question) -> bool:
        """Whether columns are to answer: they are there, or too many bodies would be read."""
        query = question.query
        paths = question.paths(with_labels=True)
        if self.tables.has(_places(query), paths):
            return True
        if query.name is not None:
            return False
        return await self._reader.rows.count_candidates(query, most=FEW + 1) > FEW

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
