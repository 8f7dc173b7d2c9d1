"""Rows that are left out of a page by their rank, against ranks that are compared one by one."""

from __future__ import annotations

import random
from array import array

import pytest

from fleetbus.kube.field_paths import FieldPath
from fleetbus_query_api.fields.column import UNDECIDED, FieldColumn
from fleetbus_query_api.fields.matching import Segment
from fleetbus_query_api.fields.order import COMPARED, NAME, NAMESPACE, SortKey, rank_of
from fleetbus_query_api.fields.ranks import rank_reader

FIELD = FieldPath.parse("spec.value")
NAMES = (
    *("", "a", "b", "web", "web-1", "Web", "~", ":", "9", "10", "-5", "+5", ".5", "5m", "1Gi"),
    *("1e3", "1x", "0web", "2026-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "é", "٣", "٣٤", "中"),
    *("n" * COMPARED, "n" * (COMPARED - 1), "n" * (COMPARED + 1), "n" * COMPARED + "~"),
    *("é" * COMPARED, "é" * (COMPARED + 9), "n" * (COMPARED - 1) + "é", "system:node"),
)
VALUES = (*NAMES, None, 0, 3, -1.5, True, ("b", "a"), (), UNDECIDED)


def segment_of(keys: list[bytes], column: FieldColumn | None = None) -> Segment:
    columns = {} if column is None else {FIELD: column}
    return Segment("eu1", keys, array("Q", bytes(8 * len(keys))), columns, 0, len(keys), [], True)


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("path", [NAME, NAMESPACE, FIELD])
def test_no_row_is_left_out_that_comes_before_the_last_one(path: FieldPath, is_descending: bool):
    chance = random.Random(1)
    values = chance.sample(VALUES if path == FIELD else NAMES, k=len(NAMES))
    key_of = {NAME: "prod/{}", NAMESPACE: "{}/web", FIELD: "prod/web"}[path]
    column = FieldColumn(len(values))
    if path == FIELD:
        for row, value in enumerate(values):
            column.set(row, value)
    keys = [key_of.format(value).encode() for value in values]
    segment = segment_of(keys, column if path == FIELD else None)
    rank, sieve = rank_reader(segment, SortKey(path, is_descending))
    rows = range(len(values))
    ranks = [
        rank_of(
            value or None if path == NAMESPACE else value,  # "" is the namespace of no namespace
            is_descending=is_descending,
        )
        for value in values
    ]
    assert [rank(row) for row in rows] == ranks
    for most in ranks:
        expected = {row for row in rows if ranks[row] <= most}
        assert expected <= set(sieve(rows, most)), most


def test_most_of_the_names_behind_the_last_one_are_left_out():
    keys = [f"prod/web-{number:04}".encode() for number in range(1000)]
    rank, sieve = rank_reader(segment_of(keys), SortKey(NAME, is_descending=False))
    assert list(sieve(range(1000), rank(99))) == list(range(100))
    rank, sieve = rank_reader(segment_of(keys), SortKey(NAME, is_descending=True))
    assert list(sieve(range(1000), rank(900))) == list(range(900, 1000))
