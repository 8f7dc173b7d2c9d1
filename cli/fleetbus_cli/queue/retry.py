"""Runs `fleetbus queue retry`: makes delayed and quarantined items due now."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.reconcile import Request
from fleetbus.workqueue.items import MOST, is_overdue, list_items, run_now
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.queue.queues import count_items, open_queue, read_request, refuse, run_on_store
from fleetbus_cli.queue.release import release_quarantined


def retry_items(words: Sequence[str], *, every: bool, redis_url: str | None) -> int:
    """Make delayed and quarantined items due now, all or some; return the exit status.

    Raises:
        ConfigError: no controller is given, or no Redis address is set.
    """
    controller, *items = words or [""]
    if not controller or every:
        raise ConfigError(
            "nothing to retry: use `fleetbus queue retry CONTROLLER` for all items, or"
            " `fleetbus queue retry CONTROLLER CLUSTER/NAMESPACE/NAME`"
        )
    requests = [read_request(controller, item) for item in items]

    async def retry(redis: Redis) -> int:
        queue = await open_queue(redis, controller)
        if not requests:
            count = await run_now(redis, controller) + await release_quarantined(queue)
            printer.line(
                f"due now: {count_items(count)}" if count else await _why_none(redis, controller)
            )
            return 0
        retried = [await _retry(redis, queue, request) for request in requests]
        return int(not all(retried))

    return run_on_store(redis_url, retry)


async def _why_none(redis: Redis, controller: str) -> str:
    """Say why no item was made due: none failed, or those that did are waiting for a worker."""
    items = await list_items(redis, controller, MOST)
    overdue = [item for item in items.shown if item.state == "delayed" and is_overdue(item)]
    due = items.counts["ready"] + items.counts["blocked"] + len(overdue)
    if not due:
        return "nothing to retry"
    are = "is" if due == 1 else "are"
    hint = "" if items.counts["processing"] else f": is a worker of {controller} running?"
    return f"nothing to retry: {count_items(due)} {are} due already{hint}"


async def _retry(redis: Redis, queue: RedisQueue, request: Request) -> bool:
    is_hastened = await run_now(redis, request.controller, request) > 0
    is_released = await queue.release(request)
    if is_hastened or is_released:
        printer.line(f"due now: {request}")
        return True
    await refuse(redis, request, "is neither delayed nor in quarantine")
    return False
