"""Runs `fleetbus queue release`: releases items from quarantine."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.reconcile import Request
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.queue.queues import count_items, open_queue, read_request, refuse, run_on_store


def release_items(words: Sequence[str], *, every: bool, redis_url: str | None) -> int:
    """Release items of a controller from quarantine; return the exit status.

    Raises:
        ConfigError: no controller or item is given, or no Redis address is set.
    """
    controller, *items = words or [""]
    if not controller or bool(items) == every:
        raise ConfigError(
            "nothing to release: use `fleetbus queue release CONTROLLER CLUSTER/NAMESPACE/NAME`, or"
            " `fleetbus queue release CONTROLLER --all`"
        )
    requests = [read_request(controller, item) for item in items]

    async def release(redis: Redis) -> int:
        queue = await open_queue(redis, controller)
        if every:
            return await _release_all(queue)
        released = [await _release(redis, queue, request) for request in requests]
        return int(not all(released))

    return run_on_store(redis_url, release)


async def _release_all(queue: RedisQueue) -> int:
    released = await release_quarantined(queue)
    printer.line(f"released {count_items(released)}")
    return 0


async def release_quarantined(queue: RedisQueue) -> int:
    """Release all items of a queue from quarantine; return how many there were."""
    released = 0
    while items := await queue.quarantined():
        for item in items:
            released += await queue.release(item.request)
    return released


async def _release(redis: Redis, queue: RedisQueue, request: Request) -> bool:
    is_released = await queue.release(request)
    if is_released:
        printer.line(f"released {request}")
    else:
        await refuse(redis, request, "is not in quarantine")
    return is_released
