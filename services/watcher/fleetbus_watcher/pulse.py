"""Signs that the event loop turns, and how full the publish window is at each of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NoReturn

from fleetbus.bus.window import Window
from fleetbus.process.health import Health
from fleetbus_watcher import metrics

HANGS_AFTER: Final = timedelta(seconds=30)
"""A loop of the process that has not turned for so long is better restarted."""
_INTERVAL: Final = timedelta(seconds=1)


async def pulse(health: Health, cluster: str, window: Window) -> NoReturn:
    """Beat until cancelled; a stalled API server or bus is no reason to restart us.

    Args:
        health: told that the loop turns.
        cluster: under which name the window is shown.
        window: that of this process.
    """
    beat = health.liveness("loop", HANGS_AFTER)
    while True:
        beat()
        metrics.show_window(cluster, window)
        await asyncio.sleep(_INTERVAL.total_seconds())
