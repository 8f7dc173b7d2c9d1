"""The projector of `fleetbus run`: in its own process if the fleet has none.

The service that has the projector is found as a plug-in: the command line imports no service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, Final, TypeAlias

import structlog

from fleetbus.bus.connection import connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import is_read
from fleetbus.bus.jetstream import ApiError
from fleetbus.errors import BusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.health import Health
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.worker.connections import Connections

log = structlog.get_logger()

RunProjector: TypeAlias = Callable[
    [Connections, Health, AppliedHere | None], Coroutine[Any, Any, None]
]
_PROJECTORS: Final = "fleetbus.projectors"
_NO_STREAM: Final = 10059
_NOT_HERE: Final = "--no-projector leaves it to others"
_LOOK_EVERY: Final = timedelta(seconds=5)
_LOOKS: Final = 3
"""In a row that find no projector: one that is only restarted keeps its place."""


async def lacks_projector(nats: NatsAccess, *, name: str) -> bool | None:
    """Whether no process reads the projector's durable, or there is none; yes takes half a second.

    None if the user may not know.

    It asks over a connection of its own: a user without the right to ask loses only that one, and
    is not to be the projector either.

    Args:
        nats: where the bus is.
        name: of the connection.

    Raises:
        BusError: NATS cannot be used at all.
    """
    async with connected(nats, name=name) as bus:
        try:
            return not await is_read(bus, [PROJECTOR])
        except ApiError as e:
            return e.code == _NO_STREAM
        except BusError as e:
            log.debug("projector_not_looked_for", error=str(e))
            return None


async def projector_gone(nats: NatsAccess, *, name: str) -> None:
    """Return once the projector of the fleet has been gone for a while.

    It may have been in another `fleetbus run`, which has ended.

    Args:
        nats: where the bus is.
        name: of the connections.
    """
    looks = 0
    while looks < _LOOKS:
        await asyncio.sleep(_LOOK_EVERY.total_seconds())
        is_lacking = None
        with suppress(BusError):  # while NATS is away nobody is to take anything over
            is_lacking = await lacks_projector(nats, name=name)
        looks = looks + 1 if is_lacking else 0


def find_projector() -> RunProjector | None:
    """The projector to host, which is logged; None if its package is not installed."""
    for point in entry_points(group=_PROJECTORS):
        log.info("projector_started", reason="no process of this fleet runs one", hint=_NOT_HERE)
        return point.load()
    log.warning("no_projector", hint="start fleetbus-reconciler, or install that package")
    return None
