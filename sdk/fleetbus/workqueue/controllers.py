"""The controllers that have a queue in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fleetbus_proto import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis


async def list_controllers(redis: Redis) -> list[str]:
    """List every controller that has, or had, a queue."""
    before, _, after = keys.queue("*", "*").rpartition("*")[0].partition("*")
    names: set[str] = set()
    scan: AsyncIterator[bytes] = cast("Any", redis).scan_iter(keys.queue("*", "*"), count=10_000)
    async for key in scan:
        name, _, _ = key.decode().removeprefix(before).partition(after)
        names.add(name)
    return sorted(names)
