"""A resync request tells a watcher that its number was refused, to claim a new one (B8)."""

from __future__ import annotations

import pytest

from fleetbus.watchers.resync import ResyncRequest

DAY = 86_400_000
NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("refused", "number", "now", "refuses"),
    [
        (NOW + 2 * DAY, NOW + 2 * DAY, NOW, True),  # our clock was ahead, and is right now
        (NOW + 2 * DAY, NOW + 2 * DAY, NOW + 2 * DAY, False),  # it still is
        (NOW + 2 * DAY, NOW, NOW, False),  # another number
        (0, NOW + 2 * DAY, NOW, False),  # nobody has refused it
        # Our clock is behind: what it claims for the request must not be claimed again and again.
        (NOW, NOW, NOW - 3 * DAY, False),
    ],
)
def test_b8_a_number_is_given_up_when_it_was_refused_and_our_clock_says_so_too(
    refused: int, number: int, now: int, *, refuses: bool
):
    assert ResyncRequest(min_epoch=NOW, refused=refused).refuses(number, now) is refuses
