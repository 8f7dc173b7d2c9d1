"""Whether a controller has enqueued all that was known when it began, as its store says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from redis.asyncio import Redis

from fleetbus_proto.keys import queue_checkpoint


async def is_synced(redis: Redis, controller: str) -> bool:
    """Whether a checkpoint of some durable of it names a full enqueue."""
    keys = cast("Any", redis).scan_iter(match=queue_checkpoint(controller, "*"))
    async for key in cast("AsyncIterator[bytes]", keys):
        if await redis.hexists(key, "synced"):
            return True
    return False
