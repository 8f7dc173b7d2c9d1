"""Connects to NATS for a command: a person waits, so a server that hangs is given up soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.bus.connection import Bus, connected
from fleetbus.errors import BusError

if TYPE_CHECKING:
    from fleetbus.process.access.nats import NatsAccess

PATIENCE: Final = timedelta(seconds=5)
"""Time limit of the connection."""
_INBOXES: Final = "_INBOX."


def agent_caller(access: NatsAccess) -> str:
    """The name by which a command calls agents: those of answers that the user of NATS may read.

    In the pod of a component these are the answers to that component only, after which its inboxes
    are named, too (rule S4).
    """
    return access.inbox_prefix.removeprefix(_INBOXES) or "cli"


@asynccontextmanager
async def connect_nats(access: NatsAccess, *, name: str) -> AsyncGenerator[Bus]:
    """Connect for the duration of the block.

    Args:
        access: the address, and what to log in with.
        name: of the connection, such as `fleetbus-events`.

    Raises:
        BusError: no server answers in time, it is too old, or it refuses the login; then the
            message names the user, and the files to check.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                bus = await stack.enter_async_context(connected(access, name=name))
        except TimeoutError:
            raise BusError(f"NATS at {access.shown} does not answer") from None
        yield bus
