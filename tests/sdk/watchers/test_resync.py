"""Resync requests: a refused number is given up for a new one (rule B8), and watchers are woken."""

from __future__ import annotations

import pytest

from fleetbus.bus.connection import connected
from fleetbus.errors import BusError
from fleetbus.watchers.resync import ResyncRequest, wake_watchers
from support.rows import each_row

DAY = 86_400_000
NOW = 1_800_000_000_000


@each_row(
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


async def test_a_wake_up_that_cannot_be_sent_is_an_error_of_the_bus(nats_url: str):
    async with connected(nats_url, name="test") as bus:
        await bus.nc.close()
        with pytest.raises(BusError, match=r"cannot send to fleetbus\.control\.mars"):
            await wake_watchers(bus, "mars")
