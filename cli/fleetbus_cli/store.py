"""Connects to Redis for a command: a person waits, so a store that hangs is given up soon."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.store.connection import connect

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.process.access.store import StoreAccess

PATIENCE: Final = timedelta(seconds=5)
"""Time limit of one answer of the store; no command asks for much at once."""


async def connect_store(access: StoreAccess) -> Redis:
    """Connect; the caller closes the client.

    Raises:
        StoreError: as `connect`; also if the server accepts and does not answer.
    """
    return await connect(access, answer_within=PATIENCE)
