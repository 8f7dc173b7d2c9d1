"""Forgets a controller that has gone for good: durables, queue, record, offset checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import consumer_info, durables_of, mark_removed
from fleetbus.bus.key_value import KeyValue
from fleetbus_proto import keys

_COUNT: Final = 1000
_CHECK_EVERY: Final = timedelta(milliseconds=100)


class Forgotten(NamedTuple):
    """The parts of a controller that were removed."""

    was_registered: bool
    has_durables: bool
    """Whether its durables still exist: no projector has removed them in time, but one will."""
    keys: int
    """The number of keys that were removed from the store."""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was known of such a controller."""
        return not (self.was_registered or self.keys)


async def forget_controller(
    bus: Bus, redis: Redis, controller: str, *, within: timedelta
) -> Forgotten:
    """Remove all that a controller keeps on the bus and in the store; safe to repeat.

    Nothing in a cluster changes. What it has to do still is gone, too: started again, it is a new
    controller, and gets everything it watches.

    Args:
        bus: a connection that may write registrations.
        redis: the store.
        controller: its name.
        within: how long to wait for the projector.

    Raises:
        ControllerRuns: a process of it runs; nothing was removed.
        BusError: as of a bus that does not answer; to be repeated.
        redis.exceptions.RedisError: the store is away; to be repeated.
    """
    was_registered = await mark_removed(bus, KeyValue(bus), controller)
    has_durables = await _are_left(bus, controller, within) if was_registered else False
    return Forgotten(was_registered, has_durables, await _remove_keys(redis, controller))


async def _are_left(bus: Bus, controller: str, within: timedelta) -> bool:
    deadline = time.monotonic() + within.total_seconds()
    while time.monotonic() < deadline:
        infos = [await consumer_info(bus, durable) for durable in durables_of(controller)]
        if not any(infos):
            return False
        await asyncio.sleep(_CHECK_EVERY.total_seconds())
    return True


async def _remove_keys(redis: Redis, controller: str) -> int:
    pattern = keys.queue(controller, "*")
    scan: AsyncIterator[bytes] = cast("Any", redis).scan_iter(pattern, count=_COUNT)
    names = [key async for key in scan]
    return int(await redis.unlink(*names)) if names else 0
