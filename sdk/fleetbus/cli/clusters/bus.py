"""Say something to the watchers of one cluster, for a command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from fleetbus.bus.connection import Bus, connected
from fleetbus.cli.target import resolve_target
from fleetbus.errors import BusError, ConfigError
from fleetbus.process.redact import without_secrets
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

_WITHIN: Final = 10.0


def call_cluster(name: str, nats_url: str | None, call: Callable[[Bus], Awaitable[int]]) -> int:
    """Connect and make a call; answers its exit status, or 1 if NATS does not answer.

    Raises:
        ConfigError: the name cannot be one, or NATS is not known.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise ConfigError(str(e)) from e
    url = resolve_target(nats_url=nats_url).require("nats_url")
    try:
        return asyncio.run(_call(url, call))
    except TimeoutError:
        print(f"fleetbus: no answer from NATS at {without_secrets(url)}", file=sys.stderr)
    except BusError as e:
        print(f"fleetbus: {e}", file=sys.stderr)
    return 1


async def _call(url: str, call: Callable[[Bus], Awaitable[int]]) -> int:
    async with asyncio.timeout(_WITHIN), connected(url, name="cli") as bus:
        return await call(bus)
