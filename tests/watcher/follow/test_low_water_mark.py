"""Up to where everything is stored: rule W4."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetbus_watcher.follow.low_water_mark import LowWaterMark


def test_w4_a_hole_holds_the_mark():
    mark = LowWaterMark("10")
    first, second, third = (mark.sent(version) for version in ("11", "12", "13"))
    mark.settle(third)
    mark.settle(first)
    assert mark.resource_version == "11"
    mark.settle(second)
    assert mark.resource_version == "13"


def test_w4_a_bookmark_waits_for_what_is_older():
    mark = LowWaterMark("10")
    slot = mark.sent("11")
    mark.passed("15")
    mark.passed("16")
    assert mark.resource_version == "10"
    assert mark.lag_seconds > 0
    mark.settle(slot)
    assert mark.resource_version == "16"
    assert mark.lag_seconds == 0
    mark.passed("20")
    assert mark.resource_version == "20"


@given(st.permutations(range(12)), st.integers(0, 12))
def test_w4_the_mark_is_the_highest_with_all_earlier_ones_settled(order: list[int], settled: int):
    mark = LowWaterMark("100")
    slots = [mark.sent(str(101 + number)) for number in range(12)]
    done = set(order[:settled])
    for number in order[:settled]:
        mark.settle(slots[number])
    unbroken = next((n for n in range(12) if n not in done), 12)
    assert mark.resource_version == str(100 + unbroken)
