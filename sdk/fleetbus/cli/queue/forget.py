"""What `fleetbus queue forget` does: a controller that has gone for good leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from fleetbus.bus.connection import connected
from fleetbus.cli.queue.queue import list_controllers
from fleetbus.cli.target import resolve_target
from fleetbus.cli.unknown import unknown
from fleetbus.errors import BusError, ConfigError, StoreError
from fleetbus.intake.forget import Forgotten, forget_controller
from fleetbus.store.connection import connect

_WITHIN: Final = timedelta(seconds=10)


def forget(words: Sequence[str], *, nats_url: str | None, redis_url: str | None) -> int:
    """Forget a controller; answers the exit status.

    Raises:
        ConfigError: there is not one name, or no NATS or Redis is known.
        UnknownName: nothing is known of such a controller.
    """
    if len(words) != 1:
        raise ConfigError("say which one: `fleetbus queue forget CONTROLLER`")
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    urls = target.require("nats_url"), target.require("redis_url")
    [controller] = words
    try:
        told = asyncio.run(_forget(controller, *urls))
    except (BusError, StoreError, RedisError) as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        return 1
    _tell(controller, told)
    return 0


async def _forget(controller: str, nats_url: str, redis_url: str) -> Forgotten:
    redis: Any = await connect(redis_url)
    async with redis, connected(nats_url, name="fleetbus-forget") as bus:
        told = await forget_controller(bus, redis, controller, within=_WITHIN)
        if told.is_nothing:
            said = f"nothing is known of a controller {controller!r}"
            raise unknown(said, controller, await list_controllers(redis))
        return told


def _tell(controller: str, told: Forgotten) -> None:
    print(f"forgot {controller}: its registration, queue and record ({told.keys} keys)")
    if told.has_durables:
        print("its durable consumers go when a projector runs")
