"""Runs `fleetbus queue forget`: deletes all state of a controller that no longer exists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from fleetbus.errors import BusError, ConfigError, StoreError
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.workqueue.controllers import list_controllers
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.queue.forget_records import Forgotten, forget_controller
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import unknown

_TIMEOUT: Final = timedelta(seconds=10)


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
