"""Make the durables that controllers ask for (rule B12)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import registered_controllers, serve_registration
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError

log = structlog.get_logger()

_PAUSE: Final = timedelta(seconds=1)
_WRITE_SETTLES: Final = timedelta(milliseconds=50)


async def serve_registrations(bus: Bus, kv: KeyValue, every: timedelta) -> None:
    """Serve until cancelled; woken by the writes of controllers, and every so often."""
    changed = asyncio.Event()
    async with kv.follow("_controllers", lambda _key, _value: changed.set()):
        while True:
            changed.clear()
            try:
                for name in await registered_controllers(bus):
                    await _serve_one(bus, kv, name)
            except BusError as e:
                log.warning("registrations_not_read", error=str(e))
                await asyncio.sleep(_PAUSE.total_seconds())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every.total_seconds()):
                    await changed.wait()
                    # We hear a write when it is sent; the bucket holds it a moment later.
                    await asyncio.sleep(_WRITE_SETTLES.total_seconds())


async def _serve_one(bus: Bus, kv: KeyValue, name: str) -> None:
    try:
        await serve_registration(bus, kv, name)
    except BusError as e:
        # One controller's trouble is not the next one's; the next look tries again.
        log.warning("registration_failed", controller=name, error=str(e))
