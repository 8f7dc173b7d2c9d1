"""Runs `fleetbus queue forget`: deletes all state of a controller that no longer exists.

That is its durables, queue, record and offset checkpoints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.reader_groups import durables_of, mark_removed
from fleetbus.errors import BusError, ConfigError, StoreError
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.workqueue.controllers import list_controllers
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import unknown
from fleetbus_proto import keys

_TIMEOUT: Final = timedelta(seconds=10)
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
    was_registered = await mark_removed(bus, controller)
    has_durables = await _are_left(bus, controller, within) if was_registered else False
    return Forgotten(was_registered, has_durables, await _remove_keys(redis, controller))


async def _are_left(bus: Bus, controller: str, within: timedelta) -> bool:
    deadline = time.monotonic() + within.total_seconds()
    while time.monotonic() < deadline:
        if not await durables_of(bus, controller, only_its_own=True):
            return False
        await asyncio.sleep(_CHECK_EVERY.total_seconds())
    return True


async def _remove_keys(redis: Redis, controller: str) -> int:
    pattern = keys.queue(controller, "*")
    scan: AsyncIterator[bytes] = cast("Any", redis).scan_iter(pattern, count=_COUNT)
    names = [key async for key in scan]
    return int(await redis.unlink(*names)) if names else 0


def forget(words: Sequence[str], *, nats_url: str | None, redis_url: str | None) -> int:
    """Forget a controller; return the exit status.

    Raises:
        ConfigError: not exactly one name is given, or an address is not set.
        UnknownName: there is no such controller.
    """
    if len(words) != 1:
        raise ConfigError("expected one controller: `fleetbus queue forget CONTROLLER`")
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    nats, store = target.require_nats(), target.require_store()
    [controller] = words
    try:
        forgotten = asyncio.run(_forget(controller, nats, store))
    except (BusError, StoreError, RedisError) as e:
        printer.note(f"fleetbus: {e}")
        return 1
    _print(controller, forgotten)
    return 0


async def _forget(controller: str, nats: NatsAccess, store: StoreAccess) -> Forgotten:
    redis: Any = await connect_store(store)
    async with redis, connect_nats(nats, name="fleetbus-forget") as bus:
        forgotten = await forget_controller(bus, redis, controller, within=_TIMEOUT)
        if forgotten.is_nothing:
            message = f"there is no controller {controller!r}"
            raise unknown(message, controller, await list_controllers(redis))
        return forgotten


def _print(controller: str, forgotten: Forgotten) -> None:
    printer.line(
        f"forgot {controller}: deleted its registration, queue and record ({forgotten.keys} keys)"
    )
    if forgotten.has_durables:
        printer.line("a running projector deletes its durable consumers")
