"""A client of nats-py that connects once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.client import Client


@asynccontextmanager
async def plain_client(address: str, **options: Any) -> AsyncGenerator[Client]:
    """Connect for the duration of the block.

    `nats.connect` leaves the connection open when the server refuses the login.
    """
    client = Client()
    try:
        await client.connect(address, allow_reconnect=False, **options)
    except nats.errors.Error:
        await client.close()
        raise
    try:
        yield client
    finally:
        await client.close()
