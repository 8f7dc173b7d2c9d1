"""Connects to NATS for a command about one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from fleetbus.bus.connection import Bus
from fleetbus.errors import BusError, ConfigError
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.target import resolve_target
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

_TIMEOUT: Final = 10.0


def run_on_bus(name: str, nats_url: str | None, call: Callable[[Bus], Awaitable[int]]) -> int:
    """Connect and make a call; return its exit status, or 1 if NATS does not answer.

    Raises:
        ConfigError: the cluster name is invalid, or no NATS address is set.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise ConfigError(str(e)) from e
    access = resolve_target(nats_url=nats_url).require_nats()
    try:
        return asyncio.run(_call(access, call))
    except TimeoutError:
        printer.note(f"fleetbus: no answer from NATS at {access.shown}")
    except BusError as e:
        printer.note(f"fleetbus: {e}")
    return 1


async def _call(access: NatsAccess, call: Callable[[Bus], Awaitable[int]]) -> int:
    async with asyncio.timeout(_TIMEOUT), connect_nats(access, name="cli") as bus:
        return await call(bus)
