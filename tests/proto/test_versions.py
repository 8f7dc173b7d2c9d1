"""resourceVersions are compared as numbers of up to 128 bits, never made into doubles (P2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetbus_proto.events import Rank
from fleetbus_proto.versions import is_comparable, is_newer, version_key
from support.rows import each_row

NEAR_LIMITS = [n + d for n in (10, 2**53, 2**63, 2**64, 2**100, 10**38) for d in (-2, -1, 0, 1, 2)]
NUMBERS = st.integers(0, 2**128 - 1) | st.sampled_from(NEAR_LIMITS)


@given(NUMBERS, NUMBERS)
def test_p2_versions_are_ordered_as_the_numbers_they_are(one: int, two: int):
    assert is_newer(str(one), str(two)) == (one > two)


@each_row("number", NEAR_LIMITS)
def test_p2_neighbours_are_reported_apart_where_a_double_cannot(number: int):
    assert is_newer(str(number + 1), str(number))
    assert not is_newer(str(number), str(number + 1))
    assert not is_newer(str(number), str(number))


@given(NUMBERS)
def test_p2_no_version_is_older_than_every_version(number: int):
    assert is_newer(str(number), "")
    assert not is_newer("", str(number))


@given(st.lists(NUMBERS))
def test_p2_the_sort_key_sorts_numbers(numbers: list[int]):
    assert sorted(map(str, numbers), key=version_key) == list(map(str, sorted(numbers)))


@given(NUMBERS)
def test_every_decimal_of_128_bits_is_comparable(number: int):
    assert is_comparable(str(number))


@each_row(
    "version",
    ["", "00", "01", "-1", "+1", "1.0", " 1", "1\n", "1e3", "0x1", "\u0661", "9" * 40, "abc"],
)
def test_anything_else_is_not_comparable(version: str):
    assert not is_comparable(version)


@given(st.tuples(NUMBERS, st.integers(0, 2**62)), st.tuples(NUMBERS, st.integers(0, 2**62)))
def test_w7_ranks_are_ordered_by_the_lists_version_then_by_the_epoch_id(
    one: tuple[int, int], two: tuple[int, int]
):
    first, second = Rank(str(one[0]), one[1]), Rank(str(two[0]), two[1])
    assert (first.key < second.key) == (one < two)
