"""Messages that nobody acknowledges."""

from __future__ import annotations

import pytest

from fleetbus.bus.connection import connected
from fleetbus.errors import BusError
from fleetbus.watchers.resync import wake_watchers


async def test_a_wake_up_that_cannot_go_out_is_an_error_of_the_bus(nats_url: str):
    async with connected(nats_url, name="test") as bus:
        await bus.nc.close()
        with pytest.raises(BusError, match=r"cannot send to fleetbus\.control\.mars"):
            await wake_watchers(bus, "mars")
