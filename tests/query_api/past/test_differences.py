"""Differences of two states of an object, which may be as large and odd as an object can be."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fleetbus_query_api.past.differences import COUNTED, MOST, compare_bodies, compare_trees
from support.rows import each_row


def numbers(value: int, count: int = 500_000) -> bytes:
    return b'{"x":[' + b",".join([b"%d" % value] * count) + b"]}"


def test_a8_two_huge_lists_are_compared_in_a_moment():
    before, after = numbers(1), numbers(2)
    start = time.process_time()
    differences = compare_bodies(before, after)
    assert time.process_time() - start < 0.3, "0.7 s, if every difference is counted"
    assert (len(differences.shown), differences.more) == (MOST, COUNTED - MOST)


def test_a8_long_names_of_fields_are_cut():
    def body(value: int) -> bytes:
        name = "k" * 16_000
        tree: object = {str(at): value for at in range(60)}
        for _ in range(20):
            tree = {name: tree}
        return msgspec.json.encode(tree)

    differences = compare_bodies(body(1), body(2))
    assert len(msgspec.json.encode(differences.render())) < 100_000
    assert differences.shown[0].path.endswith("k…")


@pytest.mark.parametrize("large", [300, 100_000])
def test_changes_with_equal_beginnings_have_other_digests(large: int):
    base = "x" * large
    before = {"data": {"a": base}}
    first, second = ({"data": {"a": base + end}} for end in "ab")
    assert compare_trees(before, first).shown == compare_trees(before, second).shown
    assert compare_trees(before, first).digest != compare_trees(before, second).digest
    assert compare_trees(before, first).digest == compare_trees(before, dict(first)).digest
    absent, null = compare_trees({}, {"a": None}), compare_trees({"a": 1}, {"a": None})
    assert absent.digest != null.digest


def test_differences_that_are_not_counted_make_another_digest():
    before = {"x": [1] * 2000}
    first, second = {"x": [2] * 2000}, {"x": [2] * 1999 + [3]}
    assert compare_trees(before, first).digest != compare_trees(before, second).digest
    assert compare_trees(before, before).digest == b""


def test_a_body_that_is_no_object_counts_as_empty():
    differences = compare_bodies(b"[1]", b'{"a": 1}')
    assert differences.shown == compare_bodies(b"", b'{"a": 1}').shown


def chain(levels: int, leaf: Any) -> Any:
    """A leaf below so many maps."""
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


@each_row(
    ("levels", "values"), [(55, 450_000), (55, 90_000), (15, 300_000), (50, 40_000), (1, 450_000)]
)
def test_a8_the_work_of_a_comparison_does_not_grow_with_values_and_depth(levels: int, values: int):
    """A list of 450,000 values below 55 maps stalled the query API for 1.7 s."""
    before, after = (chain(levels, [*[[]] * values, end]) for end in (1, 2))
    (difference,) = compare_trees({"x": before}, {"x": after}).shown
    compared = difference.path.count("a") + 1
    assert compared <= max(2, 1_500_000 // (2 * values))


def test_a_large_definition_is_compared_in_all_its_levels():
    fields = [{"type": "string", "description": "x"}] * 8_000
    before, after = (chain(30, {"fields": fields, "replicas": number}) for number in (1, 2))
    shown = compare_trees(before, after).shown
    assert [(each.path[-9:], each.before, each.after) for each in shown] == [(".replicas", 1, 2)]
